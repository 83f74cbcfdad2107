// Searches the passages of PAGES: each word must occur in a passage or its headings; Chinese is found as it is written.
(() => {
  const SHOWN = 60; // passages
  const chinese = document.documentElement.lang.startsWith("zh");
  const [BEFORE, AFTER] = chinese ? [30, 90] : [60, 180]; // characters around the first word that was found
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  const place = document.getElementById("search-results");
  for (const field of document.querySelectorAll("input[name=q]")) field.value = query;
  document.querySelector(".bd-search-container input").focus();
  if (!query) return;

  const words = query.toLowerCase().split(/\s+/);
  const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  // An English word is found at its beginning, with or without a plural: "ratios" in "ratio", "ratio" not in "duration".
  const patterns = escaped.map((word) => (/^[a-z0-9]/.test(word) ? `(?<![a-z0-9])${word.replace(/(?<=...)s$/, "s?")}` : word));
  const count = (text) => patterns.map((pattern) => text.match(new RegExp(pattern, "gi"))?.length ?? 0);

  const found = [];
  for (const [address, title, passages] of window.PAGES) {
    const inTitle = count(title);
    for (const [anchor, heading, text] of passages) {
      const [inHeading, inText] = [count(heading), count(text)];
      if (!words.every((_, i) => inTitle[i] || inHeading[i] || inText[i])) continue;
      if (!inHeading.some(Boolean) && !inText.some(Boolean) && heading !== title) continue; // the page's first passage stands for it
      const exact = heading.toLowerCase() === query.toLowerCase() ? 50 : 0;
      const score = words.reduce((sum, _, i) => sum + 10 * !!inHeading[i] + 4 * !!inTitle[i] + Math.min(inText[i], 5), exact);
      found.push({ address, title, anchor, heading, text, score });
    }
  }
  found.sort((a, b) => b.score - a.score);

  function make(name, attributes = {}, ...children) {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  }

  function marked(text) {
    const parts = text.split(new RegExp(`(${patterns.join("|")})`, "gi"));
    return parts.map((part, i) => (i % 2 ? make("mark", {}, part) : part));
  }

  function snippet(text) {
    const at = Math.max(text.search(new RegExp(patterns.join("|"), "i")), 0);
    const start = at < BEFORE ? 0 : text.indexOf(" ", at - BEFORE) + 1 || at - BEFORE;
    const from = start > at ? at - BEFORE : start;
    return (from ? "… " : "") + text.slice(from, at + AFTER) + (at + AFTER < text.length ? " …" : "");
  }

  function keep() { // the page that one opens marks them (Sphinx's sphinx_highlight.js)
    try { localStorage.setItem("sphinx_highlight_terms", words.join(" ")); } catch {}
  }

  const said = found.length
    ? chinese ? `找到 ${found.length} 处` : `${found.length} ${found.length === 1 ? "passage" : "passages"}`
    : chinese ? `没有匹配“${query}”的内容。` : `Your search did not match any page: ${query}`;
  const more = found.length > SHOWN ? (chinese ? `，列出前 ${SHOWN} 处` : `, the first ${SHOWN} of them below`) : "";
  const rows = found.slice(0, SHOWN).map(({ address, title, anchor, heading, text }) => {
    const href = `${document.documentElement.dataset.content_root}${address}${anchor && `#${anchor}`}`;
    const shown = marked(heading && heading !== title ? `${title} › ${heading}` : title);
    return make("li", {}, make("a", { href, onclick: keep }, ...shown), make("p", {}, ...marked(snippet(text))));
  });
  place.append(make("p", {}, said + more), make("ol", { className: "passages" }, ...rows));
})();
