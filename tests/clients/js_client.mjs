// Driven by test_js_client.py: node js_client.mjs CASE ADDRESS. Prints one JSON line; a thrown error fails the test.
import assert from "node:assert/strict";

const { connect, Closed, ServerError, TimedOut } = await import(process.env.SHARDPOOL_JS);
const [name, address] = process.argv.slice(2);
const until = async (condition) => {
  const end = Date.now() + 10000;
  while (!condition()) {
    assert(Date.now() < end, "the condition did not come true");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};
const rejected = async (promise, type, words) => {
  const error = await promise.then(() => assert.fail("resolved"), (error) => error);
  assert(error instanceof type, `${error?.stack}`);
  assert.match(error.message, words);
  return error;
};

const cases = {
  async sends_again() {
    const client = await connect(address);
    for (let n = 0; n < 300; n++) await client.send({ type: "x", n });
    await client.send("lose");
    assert.equal(await client.ask("later"), "done");
    assert.deepEqual(await client.ask({ type: "echo" }), { type: "echo" });
    assert.equal(client.statistics.reconnects, 1);
    client.close();
  },
  async comes_back() {
    const seen = [], returns = [];
    const client = await connect(address, { onReconnect: (welcome) => { returns.push(welcome.resumed); } });
    client.on(null, (message) => { seen.push(message); });
    const later = client.ask("later");
    await client.send("lose"); // the server pushes 0 and 1, ends the connection, and keeps 2 and the reply
    await until(() => returns.length === 1);
    assert.equal(await later, "done");
    assert.deepEqual(await client.ask({ type: "echo" }), { type: "echo" });
    assert.deepEqual(seen, [0, 1, 2]);
    assert.deepEqual(returns, [true]);
    assert.equal(client.statistics.reconnects, 1);
    client.close();
  },
  async waits() {
    const client = await connect(address);
    await client.send("lose");
    await until(() => !client.connected);
    await rejected(client.ask({ type: "echo" }, { timeout: 1 }), TimedOut, /echo/);
    const sent = [1, 2, 3].map((n) => client.send({ type: "x", n }));
    for (let n = 0; n < 1020; n++) client.send({ type: "y" }).catch(() => {});
    await rejected(client.send("one too many"), RangeError, /1024 messages wait/);
    await Promise.all(sent);
    assert(client.connected);
    client.close();
  },
  async resume_refused() {
    const closes = [];
    const client = await connect(address, { onClose: (why) => { closes.push(why.code); } });
    const asking = client.ask("later");
    await client.send("lose");
    const error = await rejected(asking, Closed, /refused/);
    assert.equal(error.code, 4404);
    assert.deepEqual(closes, [4404]);
    await rejected(client.send("x"), Closed, /resume_refused/);
  },
  async anew() {
    const returns = [];
    const options = { auth: ["ann"], reconnect: "anew", onReconnect: (welcome) => { returns.push(welcome.resumed); } };
    const client = await connect(address, options);
    const asking = client.ask("later");
    await client.send("lose");
    await rejected(asking, Closed, /refused/);
    assert.deepEqual(await client.ask({ type: "echo" }), { type: "echo" });
    assert.deepEqual(returns, [false]);
    client.close();
  },
  async not_at_all() {
    const client = await connect(address, { reconnect: false });
    const asking = client.ask("later");
    await client.send("lose");
    assert.equal((await rejected(asking, Closed, /1006/)).code, 1006);
  },
  async window() {
    const client = await connect(address);
    await client.send("lose");
    const error = await rejected(client.ask("echo"), Closed, /kept for 0.5 s/);
    assert.equal(error.code, 1006);
  },
  async asks() {
    const client = await connect(address, { auth: { user: "ann" } });
    assert.equal(client.welcome.app, "fake");
    assert.deepEqual(await client.ask({ type: "echo", n: 1, s: "ü" }), { type: "echo", n: 1, s: "ü" });
    const replies = await Promise.all(Array.from({ length: 300 }, (_, n) => client.ask({ type: "echo", n })));
    assert.deepEqual(replies.map((reply) => reply.n), Array.from({ length: 300 }, (_, n) => n));
    const error = await rejected(client.ask("fail"), ServerError, /room is full/);
    assert.deepEqual([error.code, error.kind], ["no_room", "CapacityExceeded"]);
    await rejected(client.ask("slow", { timeout: 50 }), TimedOut, /slow/);
    assert((await client.ping()) >= 0);
    await rejected(client.send({ no: "type" }), TypeError, /"type"/);
    await rejected(client.send({ type: "x", fill: "y".repeat(70000) }), RangeError, /65536/);
    client.close();
    await rejected(client.send("x"), Closed, /closed by this program/);
  },
  async pushes() {
    const client = await connect(address);
    const named = [], rest = [];
    client.on("position", (message) => { named.push(message.x); }).on(null, (message) => { rest.push(message); });
    await client.send("push");
    await until(() => named.length === 130 && rest.length === 1);
    assert.deepEqual(named, Array.from({ length: 130 }, (_, n) => n));
    assert.deepEqual(rest, [[1, 2]]);
    await new Promise((resolve) => setTimeout(resolve, 700));
    assert.equal(client.resumePoint.received, 131);
    client.close();
  },
  async heartbeat() {
    let closed = null;
    const client = await connect(address, { onClose: (why) => { closed = why; } });
    const ask = client.ask("slow");
    const error = await rejected(ask, Closed, /half-open/);
    assert.equal(error.code, 1006);
    assert.equal(closed.code, 1006);
  },
  async closes() {
    const client = await connect(address);
    const error = await rejected(client.ask("slow"), Closed, /because/);
    assert.deepEqual([error.code, error.reason, error.closeName], [4453, "because", "slow_client"]);
  },
  async refused() {
    const error = await rejected(connect(address), Closed, /unknown ticket/);
    assert.equal(error.code, 4401);
  },
  async silent() {
    await rejected(connect(address, { timeout: 100 }), TimedOut, /did not bind/);
  },
  async unreachable() {
    const error = await rejected(connect(address), Closed, /1006/);
    assert.equal(error.code, 1006);
  },
  async late() {
    const client = await connect(address);
    await rejected(client.ask("slow", { timeout: 50 }), TimedOut, /slow/);
    await client.send("answer");
    await until(() => client.statistics.late === 1);
    client.close();
  },
  async garbage() {
    const client = await connect(address);
    const error = await rejected(client.ask("slow"), Closed, /server/);
    assert([4400, 4413, 1002, 1006, 1009].includes(error.code), `${error.code}`);
  },
};

await cases[name]();
console.log(JSON.stringify({ ok: name }));
