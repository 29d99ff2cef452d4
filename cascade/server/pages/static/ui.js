"use strict";

// The key is stored in this tab (sessionStorage) and sent as a header of our own requests: no other site can send it.
const KEY = "cascade-key";
const main = () => document.querySelector("main");
let busy = false;

function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return { ...(key ? { authorization: `Bearer ${key}` } : {}), ...more };
}

function say(text) {
  const place = document.querySelector("#said");
  if (place) place.textContent = text;
}

async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

async function show(response, focus) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  document.title = page.title;
  main().replaceWith(page.querySelector("main"));
  document.querySelector("#forget").hidden = !sessionStorage.getItem(KEY);
  const place = focus && document.querySelector(focus);
  if (place) {
    window.scrollTo(0, 0);
    place.focus({ preventScroll: true });
  }
}

async function load(focus) {
  if (busy) return;
  busy = true;
  try {
    const response = await fetch(location.href, { headers: headers({}), cache: "no-store" });
    if (response.status === 401 || response.status === 403) {
      sessionStorage.removeItem(KEY);
      say(await problem(response));
    } else if ((response.headers.get("content-type") || "").startsWith("text/html")) {
      await show(response, focus);
    } else {
      say(await problem(response));
    }
  } catch {
    say("The server is not responding.");
  } finally {
    busy = false;
  }
}

// Keys of a review: the server gives each key its meaning, and the page only sends them.
async function press(key) {
  const { reviewer, pair, pressed } = main().dataset;
  if (busy || pair === undefined) return;
  busy = true;
  say("");
  main().setAttribute("aria-busy", "true");
  try {
    const response = await fetch("/ui/review/press" + location.search, {
      method: "POST",
      headers: headers({ "content-type": "application/json" }),
      body: JSON.stringify({ reviewer, pair, keys: pressed + key }),
    });
    if (response.ok) await show(response, "h1[tabindex]");
    else say(await problem(response));
  } catch {
    say("The server is not responding, and this key was not saved. Press it again.");
  } finally {
    main().removeAttribute("aria-busy");
    busy = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button, a[data-refresh]");
  if (!button) return;
  if (button.dataset.key) press(button.dataset.key);
  else if (button.id === "forget") {
    sessionStorage.removeItem(KEY);
    location.reload();
  } else if (button.dataset.refresh !== undefined) {
    event.preventDefault();
    load("main");
  }
});

document.addEventListener("submit", (event) => {
  if (event.target.id !== "login") return;
  event.preventDefault();
  sessionStorage.setItem(KEY, document.querySelector("#key").value.trim());
  load("main");
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("input, textarea, select")) return;
  const button = [...document.querySelectorAll("button[data-key]")].find((one) => one.dataset.key === event.key);
  if (button) {
    event.preventDefault();
    press(event.key);
  }
});

document.querySelector("#forget").hidden = !sessionStorage.getItem(KEY);
if (main().dataset.locked !== undefined && sessionStorage.getItem(KEY)) load("main");
