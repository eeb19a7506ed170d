import { fill, h } from "../dom.js";

export class RequestView {
  constructor(root, frame) {
    this.root = root;
    this.frame = frame;
    fill(root, h("p", {}, "Request"));
  }

  show(argument) {}

  hide() {}
}
