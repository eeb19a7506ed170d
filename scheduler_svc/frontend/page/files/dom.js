// Makes elements, and tells their keys apart. Text goes into text nodes and never into markup: what a model or a
// client writes stays text.

/**
 * An element with attributes and children.
 *
 * @param {string} name of the tag, perhaps with classes: "button.primary".
 * @param {Object} attributes by name. `on` is an object of listeners; `true` gives an attribute without a value; null,
 *   undefined and false leave it out. `text` is not an attribute: give text as a child.
 * @param {...(Node|string|number|null|undefined)} children null and undefined are left out.
 */
export function h(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value === true) {
      element.setAttribute(key, "");
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(key, String(value));
    }
  }
  append(element, children);
  return element;
}

/** A button that submits no form. */
export function button(label, click, attributes = {}) {
  return h("button", { type: "button", ...attributes, on: { click } }, label);
}

/**
 * Whether a key was the reader's to an input method, with which a word is chosen or given up, and not to the page. In
 * Safari the word has ended before its last key comes, and nothing but the key's old code tells.
 */
export function isOfInputMethod(event) {
  return event.isComposing || event.keyCode === 229;
}

/** Put these children into an element in place of what it has. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}
