// The calls of an answer, and the place for their results.

import { fill, h } from "../dom.js";
import { Indenter } from "./indent.js";

export class CallsView {
  #shown = []; // of each call: its indenter, how much of the arguments it has had, and their text node
  #form = h("form.results", { hidden: true, on: { submit: (event) => this.#send(event) } });
  #inputs = [];

  /** @param {string} id for ids of controls. @param {function(string[]): void} onResults */
  constructor(id, onResults) {
    this.id = id;
    this.onResults = onResults;
    this.list = h("div");
    this.element = h("div.calls", { hidden: true }, this.list, this.#form);
  }

  update(calls) {
    this.element.hidden = !calls.length;
    calls.forEach((call, index) => {
      this.#shown[index] ??= this.#begin();
      const shown = this.#shown[index];
      if (shown.name.textContent !== call.name) shown.name.textContent = call.name;
      if (call.arguments.length === shown.length) return;
      shown.text.appendData(shown.indenter.feed(call.arguments.slice(shown.length)));
      shown.length = call.arguments.length;
    });
  }

  /** Ask for the results of these calls, or of none. */
  ask(calls) {
    if (calls.length === this.#inputs.length) return;
    this.#inputs = calls.map((call, index) => h("textarea.mono", { id: `${this.id}-result-${index}`, rows: 2 }));
    this.#form.hidden = !calls.length;
    fill(this.#form,
      calls.map((call, index) => [
        h("label", { for: `${this.id}-result-${index}` }, `Result of ${call.name}`), this.#inputs[index]]).flat(),
      calls.length ? h("button.primary", { type: "submit" }, calls.length > 1 ? "Send results" : "Send result") : null);
  }

  #begin() {
    const shown = { indenter: new Indenter(), length: 0, text: document.createTextNode(""), name: h("code") };
    this.list.append(h("div.call", { "data-testid": "call" },
      h("p", {}, "Calls ", shown.name), h("pre.arguments", {}, shown.text)));
    return shown;
  }

  #send(event) {
    event.preventDefault();
    this.onResults(this.#inputs.map((input) => input.value));
  }
}
