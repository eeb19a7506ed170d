import { fill, h } from "../dom.js";

export class FleetView {
  constructor(root, frame) {
    this.root = root;
    this.frame = frame;
    fill(root, h("p", {}, "Fleet"));
  }

  show(argument) {}

  hide() {}
}
