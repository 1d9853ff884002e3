// The JavaScript client of docs/protocol.md, for browsers and Node.js 20 or later. No dependency.
//
//   import { connect } from "/shardpool.js";
//   const client = await connect("ws://127.0.0.1:7001/");
//   client.on("positions", (message) => …);          // pushes by name; on(null, …) for all the others
//   await client.send({ type: "enter", room: "a", name: "ann" });
//   const where = await client.ask({ type: "move", dx: 1, dy: 0 }, { timeout: 2000 });
//
// ws:// and wss:// need a WebSocket: browsers and Node.js 22 have one; in Node.js 20 use tcp:// or tls://, or pass a
// constructor (`ws` from npm) as the option WebSocket. A lost connection is replaced and the session resumed. Times are milliseconds here, as everywhere in JavaScript.

const VERSION = 1;
const FRAME_LIMIT = 65536;
const ACK_FRAMES = 64;
const ACK_BYTES = 65536;
const ACK_MS = 500;
const OPEN_ASKS_MAX = 4096;
const UNSENT_MAX = 4 << 20;
const HELD_MAX = 1024; // frames that wait for the next connection
const ATTEMPT_MS = 10000;
const FIRST_PAUSE_MS = 100;
const PAUSE_MS = 250;
const PAUSE_MAX_MS = 5000;
const RESUME_REFUSED = 4404;
const SESSION_STAYS = new Set([1006, 4410, 4453, 4503]); // "Close codes" of docs/protocol.md
const FINAL = new Set([1002, 1007, 1009, 4400, 4401, RESUME_REFUSED, 4409, 4413]); // it would be the same again
const NUMBER_LIMIT = 0xffffffff;
const NAMES = {
  1000: "normal", 1001: "going_away", 1002: "websocket_protocol", 1006: "lost", 1007: "invalid_utf8",
  1009: "message_too_big", 4400: "protocol_error", 4401: "unauthenticated",
  4404: "resume_refused", 4408: "hello_timeout", 4409: "replaced", 4410: "idle", 4413: "frame_too_big", 4429: "rate_limited", 4453: "slow_client", 4500: "internal",
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
 * @param {object} [options] auth: any JSON, for the app's on_connect; resume: a `resumePoint`; reconnect: true (default):
 *   a lost connection is replaced and the session resumed, false: it is the end, "anew": a new session begins when the
 *   old one is gone, open asks fail; timeout: of connecting, 10000; askTimeout: 30000; heartbeat: default what the
 *   server says, 0: none; WebSocket: constructor; tls: options of node:tls; onReconnect: called with the new welcome
 *   (resumed false: "anew"); onClose: called once with a Closed; onSendFailed: called with a ServerError for each
 *   failed send
 * @returns {Promise<Client>} rejects with Closed (refused, unreachable) or TimedOut
 */
export async function connect(address, options = {}) {
  const timeout = options.timeout ?? 10000;
  const client = new Client(address, options);
  const timer = setTimeout(() => client._expire(`${address} did not bind a session within ${timeout} ms`), timeout);
  try {
    await client._connect();
  } finally {
    clearTimeout(timer);
  }
  return client;
}

/** A bound session; made by `connect`. */
export class Client {
  constructor(address, options) {
    this.statistics = { sent: 0, messages: 0, replies: 0, errors: 0, late: 0, unhandled: 0, repeated: 0, reconnects: 0 };
    /** What the server said last. */
    this.welcome = null;
    /** Whether there is a connection now; without one, messages wait for the next. */
    this.connected = false;
    /** Why the session is over, or null while it is not. */
    this.closed = null;
    this._address = address;
    this._options = options;
    this._resume = options.resume;
    this._held = [];
    this._outgoing = []; // frames that the server may not have taken; the first is message _settled + 1
    this._settled = this._pinged = this._pingedBytes = 0;
    this._pauseTimer = null;
    this._askTimeout = options.askTimeout ?? 30000;
    this._limit = FRAME_LIMIT;
    this._handlers = new Map();
    this._asks = new Map();
    this._pings = [];
    this._lastId = 0;
    this._seen = options.resume?.received ?? 0;
    this._unacknowledged = this._unacknowledgedBytes = 0;
    this._ackTimer = null;
    this._beatTimer = null;
    this._heard = Date.now();
    this._link = null;
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

  /**
   * Send a message: an object with "type", or the name of a message without fields. Resolves once it is written; without
   * a connection it waits for the next one, with at most 1,024 others. What was on its way when the connection broke may
   * get lost: an ask would tell.
   */
  async send(message) {
    await this._write("S", null, this._encode(message));
  }

  /** Send a message and wait for its reply. Rejects with ServerError, TimedOut or Closed. */
  ask(message, { timeout = this._askTimeout } = {}) {
    return new Promise((resolve, reject) => {
      if (this._asks.size >= OPEN_ASKS_MAX) throw new RangeError(`${OPEN_ASKS_MAX} asks are open: wait for some`);
      const id = this._nextId();
      this._write("A", id, this._encode(message))?.catch(() => {}); // the ask itself hears of the end
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
    if (this.connected) this._link.bye();
    else this._link?.forget();
    this._over(new Closed(1000, "closed by this program"));
  }

  // --- for the link ---

  _opened() {
    const hello = { v: VERSION };
    if (this._options.auth !== undefined) hello.auth = this._options.auth;
    if (this._resume) hello.resume = this._resume;
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
    const closed = new Closed(code, reason);
    if (!this.welcome) return this._over(closed);
    if (!this.connected) return this._refuse(closed); // an attempt to come back
    const window = this.welcome.resume_window * 1000;
    const mode = this._options.reconnect ?? true;
    if (!mode || !SESSION_STAYS.has(code) || (window <= 0 && mode !== "anew")) return this._over(closed);
    this.connected = false;
    this._forget(closed);
    this._comeBack(closed, window, window > 0, 0, Date.now() + window);
  }

  _giveUp(code, reason) {
    const link = this._link;
    this._lost(code, reason);
    link?.abort();
  }

  _expire(message) {
    if (this.connected) return;
    this._refuse(new TimedOut(message));
    this._giveUp(1006, message);
  }

  // --- connections ---

  async _connect() {
    const bound = new Promise((resolve, reject) => { this._bind = resolve; this._refuse = reject; });
    bound.catch(() => {}); // awaited below, perhaps after it was refused
    const url = new URL(this._address);
    if (url.protocol === "ws:" || url.protocol === "wss:") {
      this._link = new WebSocketLink(this._address, this, this._options.WebSocket ?? globalThis.WebSocket);
    } else if (url.protocol === "tcp:" || url.protocol === "tls:") {
      this._link = await openStream(url, this, this._options.tls);
    } else {
      throw new TypeError(`${this._address}: write ws://host:port/, wss://…, or in Node.js tcp://host:port or tls://host:port`);
    }
    if (this.closed) this._link.forget(); // closed while the link was being made
    await bound;
  }

  // What belongs to one connection ends with it; asks and handlers do not.
  _forget(closed) {
    clearTimeout(this._ackTimer);
    clearTimeout(this._beatTimer);
    this._ackTimer = this._beatTimer = null;
    this._unacknowledged = this._unacknowledgedBytes = 0;
    for (const { reject } of this._pings.splice(0)) reject(closed);
    this._link?.forget();
  }

  // Attempt number `tries`: after a first pause that spreads a crowd, growing ones, each with some chance in it.
  _comeBack(lost, window, resume, tries, deadline) {
    const full = Math.min(PAUSE_MAX_MS, PAUSE_MS * 2 ** (tries - 1));
    const pause = tries === 0 ? Math.random() * FIRST_PAUSE_MS : full * (0.5 + Math.random() / 2);
    const left = resume ? deadline - Date.now() - pause : ATTEMPT_MS;
    if (left <= 0) {
      const why = new Closed(lost.code, `${lost.reason}; the session is kept for ${window / 1000} s, which are over`);
      this._refused(why, lost, window, resume);
      return;
    }
    this._pauseTimer = setTimeout(async () => {
      const timer = setTimeout(() => this._refuse(new Closed(1006, "no answer in time")), Math.min(ATTEMPT_MS, left));
      try {
        this._resume = resume ? this.resumePoint : undefined;
        await this._connect();
      } catch (error) {
        this._link?.forget();
        if (this.closed) return;
        if (FINAL.has(error.code)) this._refused(error, lost, window, resume);
        else this._comeBack(lost, window, resume, tries + 1, deadline);
      } finally {
        clearTimeout(timer);
      }
    }, pause);
  }

  _refused(why, lost, window, resume) {
    if (this._options.reconnect !== "anew" || !resume) return this._over(why);
    this._failAsks(why);
    this._comeBack(lost, window, false, 0, 0);
  }

  _failAsks(closed) {
    for (const { reject, timer } of this._asks.values()) {
      clearTimeout(timer);
      reject(closed);
    }
    this._asks.clear();
  }

  _over(closed) {
    if (this.closed) return;
    this.closed = closed;
    const bye = this.connected && closed.code === 1000; // the link says goodbye and ends by itself
    this.connected = false;
    clearTimeout(this._pauseTimer);
    const link = this._link;
    if (bye) this._link = null;
    this._forget(closed);
    this._link = link;
    this._failAsks(closed);
    for (const { reject } of this._held.splice(0)) reject(closed);
    this._refuse?.(closed);
    this._call(this._options.onClose, closed);
  }

  // --- inside ---

  _act(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const kind = String.fromCharCode(view.getUint8(0));
    switch (kind) {
      case "M":
        if (this._numbered(view.getUint32(1), bytes.length)) this._push(this._decode(bytes.subarray(5)));
        break;
      case "R":
        if (this._numbered(view.getUint32(1), bytes.length)) {
          this.statistics.replies++;
          this._complete(view.getUint32(5), this._decode(bytes.subarray(9)), null);
        }
        break;
      case "E":
        if (this._numbered(view.getUint32(1), bytes.length)) {
          this.statistics.errors++;
          this._complete(view.getUint32(5), null, new ServerError(parse(bytes.subarray(9))));
        }
        break;
      case "P":
        this._link.write(frame("O", null, bytes.subarray(1)));
        break;
      case "O": {
        // A heartbeat's pong carries a byte, a measured one none, one that settles messages their count.
        if (bytes.length === 9) this._settle(Number(view.getBigUint64(1)));
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
    if (this.connected) throw new Error("a second welcome");
    if (welcome.v !== VERSION) throw new Error(`version ${welcome.v}, this client speaks ${VERSION}`);
    if (welcome.codec !== "json" && welcome.codec !== "raw") {
      throw new Error(`the app's codec is ${welcome.codec}, this client speaks json and raw`);
    }
    const back = this.welcome !== null;
    if (back && this._resume && !welcome.resumed) {
      this._refuse(new Closed(RESUME_REFUSED, "the server began a new session instead"));
      return;
    }
    this.welcome = welcome;
    this.connected = true;
    this._limit = welcome.max_frame;
    if (!welcome.resumed) this._seen = 0;
    if (!back || !welcome.resumed) {
      this._outgoing = [];
      this._settled = welcome.taken ?? 0;
    }
    this._settle(welcome.taken ?? 0);
    this._pinged = this._settled;
    this._pingedBytes = 0;
    for (const bytes of this._outgoing) this._link.write(bytes); // once more, before anything new
    this._heartbeat = this._options.heartbeat ?? welcome.heartbeat * 1000;
    if (this._heartbeat > 0) this._beatTimer = setTimeout(() => this._beat(false), this._heartbeat);
    for (const { bytes, resolve } of this._held.splice(0)) {
      this._put(bytes);
      resolve();
    }
    this._bind();
    if (!back) return;
    this.statistics.reconnects++;
    this._call(this._options.onReconnect, welcome);
  }

  _numbered(seq, size) {
    if (!this.connected) throw new Error("a message before the welcome");
    const expected = (this._seen % NUMBER_LIMIT) + 1;
    if (seq !== expected) {
      if (((this._seen - seq) >>> 0) >= 0x80000000) throw new Error(`number ${seq} where ${expected} was due`);
      this.statistics.repeated++; // seen before the resume
      return false;
    }
    this._seen = seq;
    this._unacknowledgedBytes += size;
    if (++this._unacknowledged >= ACK_FRAMES || this._unacknowledgedBytes >= ACK_BYTES) this._acknowledge();
    else this._ackTimer ??= setTimeout(() => this._acknowledge(), ACK_MS);
    return true;
  }

  _acknowledge() {
    clearTimeout(this._ackTimer);
    this._ackTimer = null;
    this._unacknowledged = this._unacknowledgedBytes = 0;
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
    this.statistics.sent++;
    if (!this.connected) {
      if (this._held.length >= HELD_MAX) throw new RangeError(`${HELD_MAX} messages wait for a connection`);
      return new Promise((resolve, reject) => { this._held.push({ bytes, resolve, reject }); });
    }
    if (this._link.unsent > UNSENT_MAX) throw new RangeError(`${UNSENT_MAX} bytes are unsent: the server does not read`);
    this._put(bytes);
    return undefined;
  }

  // Write a message and keep it until a ping behind it was echoed, or a welcome says that it was taken.
  _put(bytes) {
    this._link.write(bytes);
    if (this.welcome.resume_window <= 0) return;
    this._outgoing.push(bytes);
    this._pingedBytes += bytes.length;
    const written = this._settled + this._outgoing.length;
    if (written - this._pinged < ACK_FRAMES && this._pingedBytes < ACK_BYTES) return;
    this._pinged = written;
    this._pingedBytes = 0;
    const count = new Uint8Array(8);
    new DataView(count.buffer).setBigUint64(0, BigInt(written));
    this._link.write(frame("P", null, count));
  }

  _settle(count) {
    const settled = Math.min(count - this._settled, this._outgoing.length);
    if (settled <= 0) return;
    this._outgoing.splice(0, settled);
    this._settled += settled;
  }
}

// Whom a link reports to once its client has given it up.
const NOBODY = { _limit: FRAME_LIMIT, _opened() {}, _received() {}, _lost() {}, _giveUp() {} };

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
    this._client = client;
    const socket = (this._socket = new WebSocket(address));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this._client._opened();
    socket.onmessage = ({ data }) =>
      this._client._received(typeof data === "string" ? encoder.encode(data) : new Uint8Array(data));
    let opened = false;
    socket.addEventListener("open", () => { opened = true; });
    // Browsers do not say why a connection failed: this sentence is all there is.
    const silent = () => (opened ? "the connection to the server broke" : `no WebSocket server answers at ${address}`);
    socket.onclose = ({ code, reason }) => this._client._lost(code === 1005 ? 1000 : code, reason || (code === 1006 ? silent() : ""));
    // Once open, onclose follows and says more; before, Node.js 20 leaves it at this.
    socket.onerror = () => { if (!opened) this._client._lost(1006, silent()); };
  }

  get unsent() { return this._socket.bufferedAmount; }
  write(bytes) { if (this._socket.readyState === 1) this._socket.send(bytes); }
  bye() { this._socket.close(1000); }
  abort() { this._socket.close(3000); } // not 1000, which would say goodbye

  forget() {
    this._client = NOBODY;
    this.abort();
  }
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
    socket.on(secure ? "secureConnect" : "connect", () => this._client._opened());
    socket.on("data", (data) => this._take(data));
    socket.on("error", (error) => { failure = error.message; });
    socket.on("close", () => this._client._lost(1006, `the connection broke: ${failure}`));
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

  forget() {
    this._client = NOBODY;
    this.abort();
  }

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
