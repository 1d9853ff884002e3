// The arena's page: one session over WebSocket, a step per animation interval while a key or the pointer is down.
import { connect } from "/shardpool.js";

const WIDTH = 100, HEIGHT = 60, SPEED = 0.9, STEP_MS = 40;
const KEYS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
  KeyA: [-1, 0], KeyD: [1, 0], KeyW: [0, -1], KeyS: [0, 1],
};

const byId = (id) => document.getElementById(id);
const canvas = byId("arena"), context = canvas.getContext("2d"), state = byId("state");
const query = new URLSearchParams(location.search);
byId("name").value = query.get("name") ?? `guest ${Math.floor(Math.random() * 900 + 100)}`;
byId("room").value = query.get("room") ?? "lobby";

const view = { client: null, connected: "connecting …", room: null, you: null, players: {}, ping: null, note: "" };
const held = new Set();
let target = null, scale = 1, pause = 500, asking = false;

function show() {
  const count = Object.keys(view.players).length;
  const parts = [view.connected];
  if (view.client && view.room) parts.push(`room “${view.room}”`, `${count} player${count === 1 ? "" : "s"}`);
  if (view.client && view.ping !== null) parts.push(`ping ${view.ping.toFixed(1)} ms`);
  if (view.note) parts.push(view.note);
  const text = parts.join(" · ");
  if (state.textContent !== text) state.textContent = text;
}

async function open() {
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/`;
  try {
    const client = await connect(address, { onClose: closed, onSendFailed: (error) => { view.note = error.message; } });
    client.on("joined", joined).on("recovered", enter).on("positions", ({ players }) => { view.players = players; });
    Object.assign(view, { client, connected: "connected", note: "" });
    pause = 500;
    enter();
  } catch (error) {
    again(error.message);
  }
  show();
}

function forget() {
  Object.assign(view, { client: null, room: null, you: null, players: {}, ping: null });
}

function closed(why) {
  if (!view.client) return;
  forget();
  again(why.reason || why.message);
}

// Browsers keep a page that was left, open sockets and all, in case one comes back: its dot would stand about.
function leave() {
  const { client } = view;
  if (!client) return;
  forget();
  view.connected = "connecting …";
  client.close();
  addEventListener("pageshow", open, { once: true });
}

function again(reason) {
  const wait = pause * (0.75 + Math.random() / 2);
  view.connected = `not connected (${reason}), trying again in ${(wait / 1000).toFixed(1)} s`;
  pause = Math.min(pause * 2, 30000);
  setTimeout(open, wait);
  show();
}

function enter() {
  view.client?.send({ type: "enter", room: byId("room").value, name: byId("name").value }).catch(() => {});
}

function joined({ accepted, room, you, why }) {
  if (accepted) Object.assign(view, { room, you, note: "" });
  else view.note = `not let into “${room}”: ${why}`;
  show();
}

async function step() {
  if (!view.client || !view.room || asking) return;
  let dx = 0, dy = 0;
  for (const key of held) { dx += KEYS[key][0]; dy += KEYS[key][1]; }
  const me = view.players[view.you];
  if (target && me) { dx = target[0] - me[1]; dy = target[1] - me[2]; }
  const length = Math.hypot(dx, dy);
  if (length < (target ? 0.5 : 0.1)) return;
  asking = true; // one move at a time: a slow network slows the dot, it does not queue steps
  const reach = Math.min(1, SPEED / length);
  try {
    await view.client.ask({ type: "move", dx: dx * reach, dy: dy * reach }, { timeout: 5000 });
    view.note = "";
  } catch (error) {
    view.note = error.message;
  } finally {
    asking = false;
  }
}

function fit() {
  const box = byId("floor").getBoundingClientRect();
  scale = Math.max(1, Math.min(box.width / WIDTH, box.height / HEIGHT));
  const ratio = window.devicePixelRatio || 1;
  canvas.style.width = `${WIDTH * scale}px`;
  canvas.style.height = `${HEIGHT * scale}px`;
  canvas.width = Math.round(WIDTH * scale * ratio);
  canvas.height = Math.round(HEIGHT * scale * ratio);
  context.setTransform(scale * ratio, 0, 0, scale * ratio, 0, 0);
}

function draw() {
  const style = getComputedStyle(document.documentElement);
  context.clearRect(0, 0, WIDTH, HEIGHT);
  context.textAlign = "center";
  context.font = `${Math.max(1.6, 12 / scale)}px system-ui, sans-serif`;
  for (const [id, [name, x, y]] of Object.entries(view.players)) {
    const mine = id === view.you;
    context.fillStyle = style.getPropertyValue(mine ? "--you" : "--them");
    context.beginPath();
    context.arc(x, y, 1.2, 0, 2 * Math.PI);
    context.fill();
    context.fillStyle = style.getPropertyValue("--text");
    context.fillText(mine ? `${name} (you)` : name, Math.min(WIDTH - 6, Math.max(6, x)), y < 4 ? y + 3.6 : y - 2);
  }
  requestAnimationFrame(draw);
}

function point(event) {
  const box = canvas.getBoundingClientRect();
  target = [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
}

byId("enter").addEventListener("submit", (event) => { event.preventDefault(); enter(); canvas.focus(); });
canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); canvas.focus(); point(event); });
canvas.addEventListener("pointermove", (event) => { if (target) point(event); });
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { target = null; });
addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT" || !(event.code in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
  held.add(event.code);
  event.preventDefault();
});
addEventListener("keyup", (event) => held.delete(event.code));
addEventListener("blur", () => held.clear());
addEventListener("pagehide", leave);
new ResizeObserver(fit).observe(byId("floor"));

setInterval(step, STEP_MS);
setInterval(show, 200);
setInterval(async () => {
  try { view.ping = view.client ? await view.client.ping() : null; } catch { view.ping = null; }
}, 1000);
fit();
draw();
open();
