// Elements without a name, labels that lead nowhere, repeated ids, and text with too little contrast.
() => {
  const roots = [document];
  for (const each of document.querySelectorAll('*')) if (each.shadowRoot) roots.push(each.shadowRoot);
  const all = (selector) => roots.flatMap((root) => [...root.querySelectorAll(selector)]);
  const shown = (each) => each.getClientRects().length > 0 && getComputedStyle(each).visibility !== 'hidden';
  const found = [];
  const report = (rule, each) => found.push([rule, each.outerHTML.slice(0, 160)]);
  const named = (each) => (each.getAttribute('aria-label') || each.textContent || each.title || '').trim() || each.labels?.length
    || each.getAttribute('aria-labelledby');
  for (const each of all('button, a[href], input, select, textarea, [role=button], canvas, svg[role=img], nav')) {
    if (shown(each) && !named(each)) report('no name', each);
  }
  for (const each of all('[aria-labelledby]')) {
    if (!each.getRootNode().getElementById(each.getAttribute('aria-labelledby'))) report('label that does not exist', each);
  }
  const seen = new Map();
  for (const each of all('[id]')) {
    const root = each.getRootNode();
    if (!seen.has(root)) seen.set(root, new Set());
    if (seen.get(root).has(each.id)) report('id used twice', each);
    seen.get(root).add(each.id);
  }
  const level = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => { const [r, g, b] = rgb.map((c) => level(c / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const colour = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const ground = (each) => {
    for (let up = each; up; up = up.parentElement ?? up.getRootNode().host) {
      const [r, g, b, a = 1] = colour(getComputedStyle(up).backgroundColor);
      if (a === 1) return [r, g, b];
      if (a > 0) return null;
    }
    return [255, 255, 255];
  };
  for (const each of all('p, a, b, small, span, td, th, li, button, label, h1, h2, h3, dt, dd, summary, code, em')) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const style = getComputedStyle(each), behind = ground(each);
    if (!own || !shown(each) || !behind || each.disabled || each.closest('.unseen')) continue;
    const [a, b] = [light(colour(style.color).slice(0, 3)), light(behind)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) report(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}`, each);
  }
  return found;
}
