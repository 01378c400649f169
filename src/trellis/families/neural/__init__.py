"""Neural language models: the feed-forward network, the LSTM, and the simple recurrent network."""

from dataclasses import replace

from trellis.registry import Family

LSTM = Family(
    name="lstm",
    title="LSTM",
    use="A neural baseline, and scoring or sampling of text.",
    limits="The model has no hidden states that can be queried: no posteriors, infilling or constraints.",
    config="trellis.families.neural.config:LSTMConfig",
    model="trellis.families.neural.rnn:LSTM",
    build="trellis.families.neural.build:lstm",
    explore="trellis.families.neural.views:NeuralViews",
    learners={"gradient": "trellis.learning.gradient:GradientLearner"},
)
FEEDFORWARD = replace(
    LSTM,
    name="feedforward",
    title="Feed-forward network",
    config="trellis.families.neural.config:FeedForwardConfig",
    model="trellis.families.neural.feedforward:FeedForward",
    build="trellis.families.neural.build:feedforward",
)
RNN = replace(
    LSTM,
    name="rnn",
    title="Recurrent network",
    config="trellis.families.neural.config:RNNConfig",
    model="trellis.families.neural.rnn:RNN",
    fit="trellis.families.neural.build:fit_rnn",
)
