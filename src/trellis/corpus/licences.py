"""The licences of named corpora, for model cards."""

LDC = "derived from the Penn Treebank of the Linguistic Data Consortium"
REUTERS = "Reuters corpus: research use under the agreement of NIST"
CONLL = f"no statement with the data; the text is {LDC}"
EWT = "CC BY-SA 4.0"

LICENCES = {
    "python-docs": "PSF License Agreement, Copyright the Python Software Foundation",
    "ptb": f"{LDC}; text copyright Dow Jones; distributed as free for research purposes",
    "wikitext-2": "CC BY-SA (text of Wikipedia)",
    "text8": "GFDL, later CC BY-SA (text of Wikipedia, March 2006)",
    "conll2000": CONLL,
    "conll2000-pos": CONLL,
    "conll2003": REUTERS,
    "conll2003-pos": REUTERS,
    "ud_ewt": EWT,
    "ud_ewt-xpos": EWT,
    "genia": "annotations CC BY 3.0, GENIA Project; abstracts from PubMed",
    "medpost": "public domain (a work of the US government)",
    "treebank_sample": f"{LDC}, copyright LDC 1995; non-commercial use only",
}
UNKNOWN = "unknown: before you publish this model, check the licence of the text (`data.licence` sets this line)"


def licence_of(source: str) -> str:
    """The licence of a named corpus. For any other text, a phrase that says that its licence is unknown."""
    return LICENCES.get(source, UNKNOWN)
