// Gives names and a place in the order of the keyboard to what the theme leaves without, as soon as it makes it.

function set(selector, attributes) {
  document.querySelectorAll(selector).forEach((element, index) => {
    for (const [name, value] of Object.entries(attributes))
      if (!element.hasAttribute(name)) element.setAttribute(name, typeof value === "function" ? value(element, index) : value)
  })
}

function nameAll() {
  set(".md-search", { "aria-label": "Search" })
  set(".md-code__nav", { "aria-label": (_, index) => `Block of code ${index + 1}` })
  set(".md-typeset__scrollwrap", { role: "group", "aria-label": "Table", tabindex: "0" })
  set(".md-nav[aria-labelledby]", { "aria-label": nav => nav.querySelector(".md-nav__title")?.textContent.trim() ?? "Pages" })
  for (const nav of document.querySelectorAll(".md-nav[aria-labelledby]")) nav.removeAttribute("aria-labelledby")
}

nameAll()
new MutationObserver(nameAll).observe(document.body, { childList: true, subtree: true })
