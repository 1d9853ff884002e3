// The JavaScript client of docs/protocol.md, for browsers and Node.js 20 or later. No dependency.
//
//   import { connect } from "/shardpool.js";
//   const client = await connect("ws://127.0.0.1:7001/");
//   client.on("positions", (message) => …);          // pushes by name; on(null, …) for all the others
//   await client.send({ type: "enter", room: "a", name: "ann" });
//   const where = await client.ask({ type: "move", dx: 1, dy: 0 }, { timeout: 2000 });
//
// ws:// and wss:// need a WebSocket: browsers and Node.js 22 have one; in Node.js 20 use tcp:// or tls://, or pass a
// constructor (`ws` from npm) as the option WebSocket. Times are milliseconds here, as everywhere in JavaScript.

const VERSION = 1;
const FRAME_LIMIT = 65536;
const ACK_FRAMES = 64;
const ACK_MS = 500;
const OPEN_ASKS_MAX = 4096;
const UNSENT_MAX = 4 << 20;
const NUMBER_LIMIT = 0xffffffff;
const NAMES = {
  1000: "normal", 1001: "going_away", 1002: "websocket_protocol", 1006: "lost", 1007: "invalid_utf8",
  1009: "message_too_big", 4400: "protocol_error", 4401: "unauthenticated", 4408: "hello_timeout", 4409: "replaced",
  4410: "idle", 4413: "frame_too_big", 4429: "rate_limited", 4453: "slow_client", 4500: "internal",
  4503: "unavailable", 4529: "too_many_connections",
};

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });

/** The server answered with an error: `code` is the condition, `kind` its family, `message` a sentence. */
export class ServerError extends Error {
  constructor({ code, kind, message }) {
    super(message);
    this.name = "ServerError";
    this.code = code;
    this.kind = kind;
  }
}

/** The connection is over: `code` of docs/protocol.md (1006: nobody said why) and `reason`. */
export class Closed extends Error {
  constructor(code, reason) {
    super(`connection closed (${code} ${NAMES[code] ?? ""}): ${reason || "no reason given"}`);
    this.name = "Closed";
    this.code = code;
    this.closeName = NAMES[code] ?? "";
    this.reason = reason;
  }
}

/** No reply in time; a late one is dropped and counted. */
export class TimedOut extends Error {
  constructor(message) {
    super(message);
    this.name = "TimedOut";
  }
}

/**
 * Connect and bind a session.
 *
 * @param {string} address ws://host:port/, wss://…, in Node.js also tcp://host:port, tls://host:port
 * @param {object} [options] auth: any JSON, for the app's on_connect; resume: a `resumePoint`; timeout: of connecting,
 *   10000; askTimeout: 30000; heartbeat: default what the server says, 0: none; WebSocket: constructor; tls: options of
 *   node:tls; onClose: called once with a Closed; onSendFailed: called with a ServerError for each failed send
 * @returns {Promise<Client>} rejects with Closed (refused, unreachable) or TimedOut
 */
export async function connect(address, options = {}) {
  const url = new URL(address);
  const timeout = options.timeout ?? 10000;
  const client = new Client(options);
  const timer = setTimeout(() => client._expire(`${address} did not bind a session within ${timeout} ms`), timeout);
  try {
    if (url.protocol === "ws:" || url.protocol === "wss:") {
      client._link = new WebSocketLink(address, client, options.WebSocket ?? globalThis.WebSocket);
    } else if (url.protocol === "tcp:" || url.protocol === "tls:") {
      client._link = await openStream(url, client, options.tls);
    } else {
      throw new TypeError(`${address}: write ws://host:port/, wss://…, or in Node.js tcp://host:port or tls://host:port`);
    }
    await client._bound;
  } finally {
    clearTimeout(timer);
  }
  return client;
}

/** A bound session; made by `connect`. */
export class Client {
  constructor(options) {
    this.statistics = { sent: 0, messages: 0, replies: 0, errors: 0, late: 0, unhandled: 0 };
    /** What the server said when the session was bound. */
    this.welcome = null;
    /** Why the connection is over, or null while it is up. */
    this.closed = null;
    this._options = options;
    this._askTimeout = options.askTimeout ?? 30000;
    this._limit = FRAME_LIMIT;
    this._handlers = new Map();
    this._asks = new Map();
    this._pings = [];
    this._lastId = 0;
    this._seen = options.resume?.received ?? 0;
    this._unacknowledged = 0;
    this._ackTimer = null;
    this._beatTimer = null;
    this._heard = Date.now();
    this._link = null;
    this._bound = new Promise((resolve, reject) => { this._bind = resolve; this._refuse = reject; });
    this._bound.catch(() => {}); // connect() awaits it too, perhaps after it was refused
  }

  /** For the option `resume` of another connect. The token in it is a secret. */
  get resumePoint() {
    return { session: this.welcome.session, token: this.welcome.token, received: this._seen };
  }

  /** Call `handler(message)` for pushes of this "type"; null: for all that have no handler of their own. */
  on(name, handler) {
    this._handlers.set(name, handler);
    return this;
  }

  /** Send a message: an object with "type", or the name of a message without fields. Resolves once it is written. */
  async send(message) {
    this._write("S", null, this._encode(message));
  }

  /** Send a message and wait for its reply. Rejects with ServerError, TimedOut or Closed. */
  ask(message, { timeout = this._askTimeout } = {}) {
    return new Promise((resolve, reject) => {
      if (this._asks.size >= OPEN_ASKS_MAX) throw new RangeError(`${OPEN_ASKS_MAX} asks are open: wait for some`);
      const id = this._nextId();
      this._write("A", id, this._encode(message));
      const timer = setTimeout(() => {
        this._asks.delete(id);
        reject(new TimedOut(`no reply to ${JSON.stringify(message).slice(0, 100)} within ${timeout} ms`));
      }, timeout);
      this._asks.set(id, { resolve, reject, timer });
    });
  }

  /** Milliseconds to the server (its acceptor) and back. */
  ping() {
    return new Promise((resolve, reject) => {
      if (this._pings.length >= 16) throw new RangeError("16 pings are open: the server does not answer");
      this._write("P", null, new Uint8Array(0));
      this._pings.push({ resolve, reject, at: performance.now() });
    });
  }

  /** End the session. */
  close() {
    if (this.closed) return;
    if (this.welcome) this._link.bye();
    else this._link?.abort();
    this._lost(1000, "closed by this program");
  }

  // --- for the link ---

  _opened() {
    const hello = { v: VERSION };
    if (this._options.auth !== undefined) hello.auth = this._options.auth;
    if (this._options.resume) hello.resume = this._options.resume;
    this._link.write(frame("H", null, encoder.encode(JSON.stringify(hello))));
  }

  _received(bytes) {
    if (this.closed) return;
    this._heard = Date.now();
    try {
      this._act(bytes);
    } catch (error) {
      this._giveUp(4400, `the server broke the protocol: ${error.message}`);
    }
  }

  _lost(code, reason) {
    if (this.closed) return;
    const closed = (this.closed = new Closed(code, reason));
    clearTimeout(this._ackTimer);
    clearTimeout(this._beatTimer);
    for (const { reject, timer } of this._asks.values()) {
      clearTimeout(timer);
      reject(closed);
    }
    this._asks.clear();
    for (const { reject } of this._pings.splice(0)) reject(closed);
    this._refuse(closed);
    this._call(this._options.onClose, closed);
  }

  _giveUp(code, reason) {
    this._lost(code, reason);
    this._link?.abort();
  }

  _expire(message) {
    this._refuse(new TimedOut(message));
    this._giveUp(1006, message);
  }

  // --- inside ---

  _act(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const kind = String.fromCharCode(view.getUint8(0));
    switch (kind) {
      case "M":
        if (this._numbered(view.getUint32(1))) this._push(this._decode(bytes.subarray(5)));
        break;
      case "R":
        if (this._numbered(view.getUint32(1))) {
          this.statistics.replies++;
          this._complete(view.getUint32(5), this._decode(bytes.subarray(9)), null);
        }
        break;
      case "E":
        if (this._numbered(view.getUint32(1))) {
          this.statistics.errors++;
          this._complete(view.getUint32(5), null, new ServerError(parse(bytes.subarray(9))));
        }
        break;
      case "P":
        this._link.write(frame("O", null, bytes.subarray(1)));
        break;
      case "O": {
        // A heartbeat's pong carries a byte, a measured one none.
        const ping = bytes.length === 1 ? this._pings.shift() : undefined;
        ping?.resolve(performance.now() - ping.at);
        break;
      }
      case "W":
        this._welcomed(parse(bytes.subarray(1)));
        break;
      case "C": {
        const { code, reason } = parse(bytes.subarray(1));
        this._giveUp(code, reason ?? "");
        break;
      }
      default: // a later version's
    }
  }

  _welcomed(welcome) {
    if (this.welcome) throw new Error("a second welcome");
    if (welcome.v !== VERSION) throw new Error(`version ${welcome.v}, this client speaks ${VERSION}`);
    if (welcome.codec !== "json" && welcome.codec !== "raw") {
      throw new Error(`the app's codec is ${welcome.codec}, this client speaks json and raw`);
    }
    this.welcome = welcome;
    this._limit = welcome.max_frame;
    if (!welcome.resumed) this._seen = 0;
    this._heartbeat = this._options.heartbeat ?? welcome.heartbeat * 1000;
    if (this._heartbeat > 0) this._beatTimer = setTimeout(() => this._beat(false), this._heartbeat);
    this._bind();
  }

  _numbered(seq) {
    if (!this.welcome) throw new Error("a message before the welcome");
    const expected = (this._seen % NUMBER_LIMIT) + 1;
    if (seq !== expected) {
      if (((this._seen - seq) >>> 0) < 0x80000000) return false; // seen before the resume
      throw new Error(`number ${seq} where ${expected} was due`);
    }
    this._seen = seq;
    if (++this._unacknowledged >= ACK_FRAMES) this._acknowledge();
    else this._ackTimer ??= setTimeout(() => this._acknowledge(), ACK_MS);
    return true;
  }

  _acknowledge() {
    clearTimeout(this._ackTimer);
    this._ackTimer = null;
    this._unacknowledged = 0;
    this._link.write(frame("K", this._seen, new Uint8Array(0)));
  }

  _beat(asked) {
    const silence = Date.now() - this._heard;
    if (silence < this._heartbeat) {
      this._beatTimer = setTimeout(() => this._beat(false), this._heartbeat - silence);
    } else if (asked) {
      this._giveUp(1006, `half-open: nothing came from the server for ${silence} ms`);
    } else {
      this._link.write(frame("P", null, Uint8Array.of(1)));
      this._beatTimer = setTimeout(() => this._beat(true), this._heartbeat);
    }
  }

  _push(message) {
    this.statistics.messages++;
    const handler = this._handlers.get(message?.type) ?? this._handlers.get(null);
    if (handler) this._call(handler, message);
    else this.statistics.unhandled++;
  }

  // What a handler throws is its own: the connection goes on, and the platform reports it.
  _call(handler, argument) {
    if (!handler) return;
    try {
      const result = handler(argument);
      result?.catch?.((error) => queueMicrotask(() => { throw error; }));
    } catch (error) {
      queueMicrotask(() => { throw error; });
    }
  }

  _complete(id, value, error) {
    if (id === 0) {
      if (this._options.onSendFailed) this._call(this._options.onSendFailed, error);
      else console.warn(`a message that was sent failed at the server: ${error?.message}`);
      return;
    }
    const ask = this._asks.get(id);
    if (!ask) {
      this.statistics.late++;
      return;
    }
    this._asks.delete(id);
    clearTimeout(ask.timer);
    if (error) ask.reject(error);
    else ask.resolve(value);
  }

  _nextId() {
    do this._lastId = (this._lastId % NUMBER_LIMIT) + 1; while (this._asks.has(this._lastId));
    return this._lastId;
  }

  _encode(message) {
    if (this.welcome?.codec === "raw") {
      if (!(message instanceof Uint8Array)) throw new TypeError("codec raw carries a Uint8Array");
      return message;
    }
    const value = typeof message === "string" ? { type: message } : message;
    if (typeof value?.type !== "string") throw new TypeError('a message is an object with "type", or a name');
    return encoder.encode(JSON.stringify(value));
  }

  _decode(bytes) {
    return this.welcome?.codec === "raw" ? bytes.slice() : parse(bytes);
  }

  _write(kind, number, body) {
    if (this.closed) throw this.closed;
    const bytes = frame(kind, number, body);
    if (bytes.length > this._limit) throw new RangeError(`a frame of ${bytes.length} bytes: the server takes ${this._limit}`);
    if (this._link.unsent > UNSENT_MAX) throw new RangeError(`${UNSENT_MAX} bytes are unsent: the server does not read`);
    this.statistics.sent++;
    this._link.write(bytes);
  }
}

function frame(kind, number, body) {
  const start = number === null ? 1 : 5;
  const bytes = new Uint8Array(start + body.length);
  bytes[0] = kind.charCodeAt(0);
  if (number !== null) new DataView(bytes.buffer).setUint32(1, number);
  bytes.set(body, start);
  return bytes;
}

function parse(bytes) {
  return JSON.parse(decoder.decode(bytes));
}

class WebSocketLink {
  constructor(address, client, WebSocket) {
    if (!WebSocket) {
      throw new TypeError("there is no WebSocket here: use tcp://, Node.js 22, or pass the option WebSocket");
    }
    const socket = (this._socket = new WebSocket(address));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => client._opened();
    socket.onmessage = ({ data }) =>
      client._received(typeof data === "string" ? encoder.encode(data) : new Uint8Array(data));
    let opened = false;
    socket.addEventListener("open", () => { opened = true; });
    // Browsers do not say why a connection failed: this sentence is all there is.
    const silent = () => (opened ? "the connection to the server broke" : `no WebSocket server answers at ${address}`);
    socket.onclose = ({ code, reason }) => client._lost(code === 1005 ? 1000 : code, reason || (code === 1006 ? silent() : ""));
    // Once open, onclose follows and says more; before, Node.js 20 leaves it at this.
    socket.onerror = () => { if (!opened) client._lost(1006, silent()); };
  }

  get unsent() { return this._socket.bufferedAmount; }
  write(bytes) { if (this._socket.readyState === 1) this._socket.send(bytes); }
  bye() { this._socket.close(1000); }
  abort() { this._socket.close(); }
}

async function openStream(url, client, tlsOptions) {
  const secure = url.protocol === "tls:";
  // Only here, so that a browser never meets the name.
  const { connect: open } = await import(secure ? "node:tls" : "node:net");
  const host = url.hostname.replace(/^\[|\]$/g, "");
  return new StreamLink(open({ host, port: Number(url.port), servername: host, ...(secure ? tlsOptions : {}) }), secure, client);
}

class StreamLink {
  constructor(socket, secure, client) {
    this._socket = socket;
    this._client = client;
    this._held = new Uint8Array(0);
    let failure = "the server closed it without saying why";
    socket.setNoDelay(true);
    socket.on(secure ? "secureConnect" : "connect", () => client._opened());
    socket.on("data", (data) => this._take(data));
    socket.on("error", (error) => { failure = error.message; });
    socket.on("close", () => client._lost(1006, `the connection broke: ${failure}`));
  }

  get unsent() { return this._socket.writableLength; }

  write(bytes) {
    if (this._socket.destroyed) return;
    const whole = new Uint8Array(4 + bytes.length);
    new DataView(whole.buffer).setUint32(0, bytes.length);
    whole.set(bytes, 4);
    this._socket.write(whole);
  }

  bye() {
    this.write(frame("B", null, new Uint8Array(0)));
    this._socket.end();
    setTimeout(() => this._socket.destroy(), 2000).unref();
  }

  abort() { this._socket.destroy(); }

  _take(data) {
    let bytes = data;
    if (this._held.length) {
      bytes = new Uint8Array(this._held.length + data.length);
      bytes.set(this._held);
      bytes.set(data, this._held.length);
    }
    let position = 0;
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    while (bytes.length - position >= 4) {
      const length = view.getUint32(position);
      if (length === 0 || length > this._client._limit) {
        this._client._giveUp(length ? 4413 : 4400, `the server sent a frame of ${length} bytes`);
        return;
      }
      if (bytes.length - position - 4 < length) break;
      this._client._received(bytes.subarray(position + 4, position + 4 + length));
      position += 4 + length;
    }
    this._held = bytes.slice(position);
  }
}
