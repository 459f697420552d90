// What makes the single page handier; it says the same without.

// Heads of tables become buttons that sort: rows carry what they are sorted by.
for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.tHead.rows[0].cells) {
    const kind = head.dataset.sort;
    if (!kind) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const first = head.dataset.first || "ascending";
      const next = now ? (now === "ascending" ? "descending" : "ascending") : first;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", next);
      const key = (row) => row.cells[head.cellIndex].dataset.key;
      const compare = kind === "number" ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b));
      const sign = next === "ascending" ? 1 : -1;
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
    });
  }
}

// What a link leads to is opened where it is folded away.
const reveal = () => {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = [];
  for (let fold = place?.closest("details"); fold; fold = fold.parentElement.closest("details")) folded.push(fold);
  for (const fold of folded.filter((each) => !each.open)) fold.open = true;
  place?.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
