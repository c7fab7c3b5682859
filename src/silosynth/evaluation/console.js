"use strict";
// The token that a link carries behind "#" never reaches a server: it is put into the form, and the form is sent.
const login = document.getElementById("login");
if (login && location.hash.length > 20) {
  login.elements.token.value = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  login.submit();
}
// Facts that change are fetched again; not while somebody works in them.
const live = document.getElementById("live");
async function refresh() {
  if (document.hidden || live.contains(document.activeElement) || !getSelection().isCollapsed) return;
  const answer = await fetch(location.href, { redirect: "error" });
  if (!answer.ok) return location.reload();
  const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
  const scrolled = live.querySelector(".log")?.scrollTop;
  if (next && next.innerHTML !== live.innerHTML) {
    live.replaceChildren(...next.childNodes);
    if (scrolled) live.querySelector(".log").scrollTop = scrolled;
  }
}
if (live) setInterval(() => refresh().catch(() => {}), 1000 * Number(live.dataset.every));
