// The service, as the page speaks to it: with the tab's API key, and errors as the API words them.
//
// A proxy in front of the service may log people in, by a cookie or by Basic auth. So the browser sends what it has for
// the page's own origin, and the key does not take `Authorization`, which is the proxy's.

/** The code of an error that a wrong key, or none, has; a proxy's 401 is not about the key. */
export const WRONG_KEY = "invalid_api_key";

const KEY = "baton.key";
const LOGGED_OUT = "Something in front of the service wants you to log in: load this page again.";

/** An answer that is an error. `code` is the API's; `status` is 0 where no answer came. */
export class ApiError extends Error {
  constructor(status, message, code = "", retryAfter = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  /** Whether the same may work a little later. */
  get mayPass() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Sends requests. The key stays in this tab: other tabs, and the tab after it is closed, do not have it. */
export class Api {
  #key = sessionStorage.getItem(KEY) ?? "";
  /** Is called when an answer says that the key is wrong, or that there is none. */
  onUnauthorized = () => {};

  get key() {
    return this.#key;
  }

  /** The key for what is sent from now on; the tab keeps it once the service has taken it (`keepKey`). */
  set key(key) {
    this.#key = key;
  }

  /** Keep the key, or that there is none, for when the page is loaded again. */
  keepKey() {
    if (this.#key) sessionStorage.setItem(KEY, this.#key);
    else sessionStorage.removeItem(KEY);
  }

  /**
   * The response to a request, once its head has come and is no error.
   *
   * @param {string} path without a leading slash: the service may stand below a prefix.
   * @param {{method?: string, body?: any, headers?: Object, signal?: AbortSignal}} options `body` is sent as JSON.
   * @throws {ApiError} for errors, and with status 0 where no answer came. An abort is thrown as it is.
   */
  async send(path, { method = "GET", body, headers = {}, signal } = {}) {
    const all = { ...headers };
    if (this.#key) all["x-api-key"] = this.#key;
    if (body !== undefined) all["content-type"] = "application/json";
    // The service redirects nothing, so a redirection leads to a page on which people log in.
    const sent = { method, headers: all, signal, cache: "no-store", credentials: "same-origin", redirect: "manual" };
    if (body !== undefined) sent.body = JSON.stringify(body);
    // The page's address may have a login in it (user:password@), and browsers send nothing to an address that has one.
    const address = new URL(path, location.origin + location.pathname);
    let response;
    try {
      response = await fetch(address, sent);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, "The service cannot be reached.");
    }
    if (response.ok) return response;
    throw await this.#failure(response);
  }

  /** The same, and its answer as JSON; null if it has none. */
  async json(path, options = {}) {
    const response = await this.send(path, options);
    return response.status === 204 ? null : response.json();
  }

  async #failure(response) {
    const text = await response.text().catch(() => "");
    let error = {};
    try {
      error = JSON.parse(text).error ?? {};
    } catch {
      // a proxy's page, perhaps
    }
    const status = response.type === "opaqueredirect" ? 401 : response.status; // by a browser it is 0
    const retryAfter = Number(response.headers.get("retry-after") ?? 0) || 0;
    if (error.code === WRONG_KEY) this.onUnauthorized();
    const message = error.message ?? (status === 401 ? LOGGED_OUT : `The service answered with status ${status}.`);
    return new ApiError(status, message, error.code ?? "", retryAfter);
  }
}
