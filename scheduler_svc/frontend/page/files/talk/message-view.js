// A message of the reader's, and a tool's result. The reader's can be edited.

import { button, fill, h, isOfInputMethod } from "../dom.js";

export class MessageView {
  #message;
  #text = h("div.text");
  #actions = h("div.actions");
  #column;

  constructor(message, column) {
    this.#message = message;
    this.#column = column;
    const isTool = message.role === "tool";
    this.element = h("li.message", { "data-role": message.role, "data-testid": "message" },
      h("h3.who", {}, isTool ? `Result of ${message.name}` : "You"), this.#text, this.#actions);
    if (isTool) this.#text.classList.add("mono");
    this.#show();
  }

  #show() {
    this.#text.textContent = this.#message.text;
    this.#text.hidden = false;
    fill(this.#actions, this.#message.role === "user" ? button("Edit", () => this.#edit()) : null);
  }

  #edit() {
    const id = `edit-${this.#message.key}`;
    const input = h("textarea", { id, rows: Math.min(12, this.#message.text.split("\n").length + 1) });
    input.value = this.#message.text;
    const cancel = () => {
      this.#show();
      this.#actions.querySelector("button").focus();
    };
    const submit = (event) => {
      event?.preventDefault();
      if (input.value.trim() === "") return;
      this.#column.edit(this.#message.key, input.value);
      this.#show();
    };
    const keydown = (event) => {
      if (isOfInputMethod(event)) return;
      if (event.key === "Escape") {
        event.stopPropagation(); // it ends the editing, not an answer
        cancel();
      } else if (event.key === "Enter" && !event.shiftKey) submit(event);
    };
    input.addEventListener("keydown", keydown);
    this.#text.hidden = true;
    fill(this.#actions, h("form.edit", { on: { submit } },
      h("label.unseen", { for: id }, "Edit the message"), input,
      h("p.quiet", {}, "What follows this message is taken away."),
      h("button.primary", { type: "submit" }, "Send again"),
      button("Cancel", cancel)));
    input.focus();
  }
}
