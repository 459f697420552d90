// What makes the single page handier, and lists of thousands quick to open.  All that is not packed is there without.

const STEP = 100;
const lists = [];
const plain = { "&lt;": "<", "&gt;": ">", "&#34;": '"', "&#39;": "'", "&amp;": "&" };

// A list of which only a part is made of elements; the rest is text, and packed until it is asked for.
class List {
  constructor(body) {
    this.body = body;
    this.packed = body.querySelector(":scope > script");
    this.packed?.remove();
    this.all = [...body.children].map((made) => ({ made }));
    this.waiting = Number(this.packed?.dataset.number ?? 0);
    this.chosen = this.all;
    this.next = this.all.length;
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.className = "further";
    this.button.addEventListener("click", () => this.further());
    (body.closest(".scroll") ?? body).after(this.button);
    this.tell();
    lists.push(this);
  }
  get size() { return this.all.length + this.waiting; }
  async load() {
    if (!this.packed) return;
    const bytes = Uint8Array.from(atob(this.packed.textContent), (letter) => letter.charCodeAt(0));
    this.packed = null;
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    this.unpacked = new Response(stream).text().then((text) => {
      this.all.push(...text.split("<>").filter((html) => html.trim()).map((html) => ({ html })));
      this.waiting = 0;
    });
  }
  async ready() { this.load(); await this.unpacked; }
  made(item) {
    if (!item.made) {
      const template = document.createElement("template");
      template.innerHTML = item.html;
      item.made = template.content.firstElementChild;
      setUp(item.made);
    }
    return item.made;
  }
  text(item) {
    const words = () => item.html.replace(/<[^>]*>/g, " ").replace(/&(lt|gt|amp|#34|#39);/g, (found) => plain[found]);
    return (item.text ??= (item.html ? words() : item.made.textContent).toLowerCase());
  }
  key(item, column) {
    item.keys ??= item.html
      ? [...item.html.matchAll(/data-key="([^"]*)"/g)].map((found) => found[1])
      : [...item.made.cells].map((cell) => cell.dataset.key);
    return item.keys[column];
  }
  show(items) {
    this.chosen = items;
    this.next = Math.min(items.length, STEP);
    this.body.replaceChildren(...items.slice(0, this.next).map((item) => this.made(item)));
    this.tell();
  }
  async further() {
    await this.ready();
    const first = this.next;
    this.next = Math.min(this.chosen.length, first + STEP);
    const added = this.chosen.slice(first, this.next).map((item) => this.made(item));
    this.body.append(...added);
    this.tell();
    added[0]?.querySelector("a, summary, [tabindex]")?.focus();
  }
  tell() {
    const left = this.chosen.length - this.next + this.waiting;
    this.button.hidden = !left;
    this.button.textContent = left ? `Show ${Math.min(left, STEP)} more of ${left.toLocaleString("en")}` : "";
  }
}

// Heads of tables become buttons that sort: rows carry what they are sorted by.  Long tables have a filter.
function sortable(table) {
  const list = new List(table.tBodies[0]);
  const chosen = { words: [] };
  const matching = () => list.all.filter((item) => chosen.words.every((word) => list.text(item).includes(word)));
  for (const head of table.tHead.rows[0].cells) {
    const kind = head.dataset.sort;
    if (!kind) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", async () => {
      const now = head.getAttribute("aria-sort");
      const next = now ? (now === "ascending" ? "descending" : "ascending") : head.dataset.first || "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", next);
      await list.ready();
      const key = (item) => list.key(item, head.cellIndex);
      const { compare: words } = new Intl.Collator();
      const compare = kind === "number" ? (a, b) => key(a) - key(b) : (a, b) => words(key(a), key(b));
      const sign = next === "ascending" ? 1 : -1;
      list.all.sort((a, b) => sign * compare(a, b));
      list.show(matching());
    });
  }
  if (list.size > 10) filter(table, list, chosen, matching);
}

function filter(table, list, chosen, matching) {
  const line = document.createElement("p");
  const box = document.createElement("input");
  const found = document.createElement("output");
  line.className = "filter";
  box.type = "search";
  box.placeholder = "Filter: words of a row";
  box.setAttribute("aria-label", `Filter ${table.closest(".scroll").getAttribute("aria-label").toLowerCase()}`);
  found.setAttribute("aria-live", "polite");
  line.append(box, found);
  table.closest(".scroll").before(line);
  box.addEventListener("input", async () => {
    await list.ready();
    chosen.words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = matching();
    list.show(shown);
    const [some, all] = [shown.length, list.size].map((number) => number.toLocaleString("en"));
    found.textContent = chosen.words.length ? `${some} of ${all}` : "";
  });
}

function setUp(part) {
  for (const table of part.querySelectorAll("table.sortable")) sortable(table);
  for (const packed of part.querySelectorAll("script[data-number]")) new List(packed.parentElement);
}

// What a link leads to is made if it was not yet, and opened where it is folded away.
const wanted = async (id) => {
  for (const list of lists.filter((each) => each.body.matches(".every"))) {
    await list.ready();
    const at = list.all.findIndex((each) => !each.made && each.html.includes(` id="${id}"`));
    if (at >= 0) {
      const [item] = list.all.splice(at, 1);
      list.all.splice(list.next++, 0, item);
      list.body.append(list.made(item));
      list.tell();
      return;
    }
  }
};
const reveal = async () => {
  const id = decodeURIComponent(location.hash.slice(1));
  const there = () => id && document.getElementById(id);
  if (id && !there()) await wanted(id.replace(/-\d+$/, ""));
  if (id && !there()) await wanted(id);
  const folded = [];
  for (let fold = (there() || null)?.closest("details"); fold; fold = fold.parentElement.closest("details")) folded.push(fold);
  for (const fold of folded.filter((each) => !each.open)) fold.open = true;
  if (id) there()?.scrollIntoView();
};
setUp(document);
addEventListener("hashchange", reveal);
reveal();
