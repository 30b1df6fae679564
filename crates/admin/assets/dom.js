// Descriptions of elements, and the DOM made to match them. All text goes into text nodes and attributes, never into markup:
// names come from the network.

const SVG = "http://www.w3.org/2000/svg";
const given = new WeakMap();

/** An element to be: its tag ("svg:path" for one of SVG), its attributes (`null` and `false`: none), and what is in it. */
export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: children.flat(2).filter((child) => child != null && child !== false) };
}

/** Makes the children of `parent` match; elements of the same tag at the same place stay, with the reader's focus and selection. */
export function fill(parent, ...children) {
  const wanted = children.flat(2).filter((child) => child != null && child !== false);
  wanted.forEach((child, at) => {
    const there = parent.childNodes[at];
    if (typeof child !== "object") {
      const text = String(child);
      if (there?.nodeType !== Node.TEXT_NODE) insert(parent, document.createTextNode(text), there);
      else if (there.data !== text) there.data = text;
      return;
    }
    const fits = given.get(there)?.tag === child.tag;
    const element = fits ? there : create(child.tag);
    if (!fits) insert(parent, element, there);
    match(element, child);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function insert(parent, node, there) {
  if (there) there.replaceWith(node);
  else parent.append(node);
}

function create(tag) {
  return tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
}

function match(element, wanted) {
  const before = given.get(element)?.attributes ?? {};
  for (const name of Object.keys(before)) if (!(name in wanted.attributes)) element.removeAttribute(name);
  for (const [name, value] of Object.entries(wanted.attributes)) {
    if (value === before[name]) continue;
    if (value == null || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : value);
  }
  given.set(element, wanted);
  fill(element, wanted.children);
}
