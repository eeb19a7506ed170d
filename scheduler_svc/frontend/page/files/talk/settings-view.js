// A column's settings: a control for each parameter, its help, what the server takes without it, and what is wrong.

import { button, h } from "../dom.js";
import { defaultOf, grouped, labelOf, read } from "./parameters.js";

export class SettingsView {
  #column;
  #fields = new Map(); // by name: {parameter, control, problem, reset}
  #count = h("span.count");

  /** @param {string} id for ids of controls. */
  constructor(column, id) {
    this.#column = column;
    this.id = id;
    const groups = grouped(column.parameters).map(([title, parameters]) => (
      h("fieldset", {}, h("legend", {}, title), parameters.map((parameter) => this.#field(parameter)))
    ));
    this.element = h("details.settings", { "data-testid": "settings" },
      h("summary", {}, "Settings", this.#count),
      h("div.panel", {}, this.#systemPrompt(), groups,
        button("Reset all parameters", () => this.#resetAll())));
    this.#countSet();
  }

  /** Open the panel at the first wrong setting. Returns whether there is one. */
  showProblem() {
    const [name] = Object.keys(this.#column.problems);
    if (!name) return false;
    this.element.open = true;
    this.#fields.get(name).control.focus();
    return true;
  }

  /** Show what the conversation has: it may have been set elsewhere. */
  reload() {
    const { values, system } = this.#column.conversation;
    this.system.value = system;
    for (const [name, field] of this.#fields) {
      field.control.value = values[name] ?? "";
      this.#check(field);
    }
    this.#countSet();
  }

  #systemPrompt() {
    const id = `${this.id}-system`;
    this.system = h("textarea", { id, rows: 3, placeholder: "none" });
    this.system.value = this.#column.conversation.system;
    this.system.addEventListener("input", () => {
      this.#column.setSystem(this.system.value);
      this.#countSet();
    });
    return h("div.field.wide", {}, h("label", { for: id }, "System prompt"), this.system);
  }

  #field(parameter) {
    const { name, kind, help } = parameter;
    const id = `${this.id}-${name}`;
    const control = controlOf(parameter, {
      id, name, autocomplete: "off", spellcheck: "false", "aria-describedby": `${id}-help ${id}-problem`,
    });
    control.value = this.#column.conversation.values[name] ?? "";
    const problem = h("p.problem", { id: `${id}-problem`, "aria-live": "polite" });
    const changed = () => {
      this.#column.set(name, control.value);
      this.#check(field);
      this.#countSet();
    };
    const reset = button("Reset", () => {
      control.value = "";
      changed();
      control.focus();
    }, { class: "reset", "aria-label": `Reset ${labelOf(name)}` });
    const field = { parameter, control, problem, reset };
    control.addEventListener("input", changed);
    this.#fields.set(name, field);
    this.#check(field);
    return h("div.field", { class: kind === "json" || kind === "strings" ? "field wide" : "field" },
      h("label", { for: id }, labelOf(name), " ", h("code", {}, name)),
      reset, control, h("p.help", { id: `${id}-help` }, help), problem);
  }

  #check({ parameter, control, problem, reset }) {
    const text = control.value;
    problem.textContent = read(parameter, text).problem ?? "";
    if (problem.textContent) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
    reset.disabled = text === "";
  }

  #resetAll() {
    for (const { parameter, control } of this.#fields.values()) {
      control.value = "";
      this.#column.set(parameter.name, "");
    }
    this.reload();
  }

  #countSet() {
    const { values, system } = this.#column.conversation;
    const names = Object.keys(values).filter((name) => this.#fields.has(name));
    const count = names.length + (system === "" ? 0 : 1);
    const wrong = Object.keys(this.#column.problems).length;
    this.#count.textContent = (count ? ` · ${count} set` : "") + (wrong ? ` · ${wrong} wrong` : "");
  }
}

/** An empty control means "not set"; what the server then takes stands in it as its placeholder. */
function controlOf(parameter, attributes) {
  const placeholder = defaultOf(parameter);
  switch (parameter.kind) {
    case "boolean":
    case "choice":
      return h("select", attributes, h("option", { value: "" }, `default (${placeholder})`),
        (parameter.choices ?? [true, false]).map((choice) => h("option", { value: String(choice) }, choice)));
    case "strings":
      return h("textarea", { ...attributes, rows: 2, placeholder });
    case "json":
      return h("textarea.mono", { ...attributes, rows: 3, placeholder });
    case "number":
    case "integer":
      return h("input", { ...attributes, type: "text", inputmode: "text", placeholder });
    default:
      return h("input", { ...attributes, type: "text", placeholder });
  }
}
