// Numbers and words as text.

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A text with every control character visible: terminal escapes, changes of direction, lone surrogates. */
export function visible(text) {
  return text.replace(CONTROL, (sign) => {
    const code = sign.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "␡" : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** A text of at most so many characters. */
export function cut(text, longest) {
  const shown = visible(text);
  return shown.length <= longest ? shown : `${shown.slice(0, longest - 1)}…`;
}

/** A token: blanks are visible too, and long ones are cut. */
export function word(token, longest = 40) {
  return cut(token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"), longest);
}

const known = (value) => typeof value === "number" && !Number.isNaN(value);

/** A probability: three decimals, or two significant digits if it is small. */
export function probability(p) {
  if (!known(p)) return "–";
  return p === 0 ? "0" : p >= 0.0995 ? p.toFixed(3) : p >= 0.001 ? p.toFixed(4) : p.toExponential(1);
}

/** A number with the given decimals, thousands separated. */
export function number(value, decimals = 2) {
  if (!known(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export const whole = (value) => number(value, 0);

export function percent(share) {
  if (!known(share)) return "–";
  return share === 0 || share >= 0.001 ? `${(100 * share).toFixed(1)}%` : `${(100 * share).toPrecision(2)}%`;
}

/** A round number in few characters: 1500000 is 1.5M. */
export function compact(value) {
  for (const [unit, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return `${Number((value / unit).toPrecision(3))}${sign}`;
  }
  return `${Number(value.toPrecision(4))}`;
}

/** Round values between low and high, at most `most` of them. */
export function ticks(low, high, most = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i += 1) found.push(i * step);
  return found;
}

/** Round values between low and high on a logarithmic scale. */
export function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) found.push(factor * 10 ** power);
  }
  const inside = found.filter((tick) => tick >= low && tick <= high);
  return inside.length >= 2 ? inside : ticks(low, high, 4);
}
