// What a page of somebody else tries at one port. Gives what it could read, and what the browser took for a success.
async (base, ways) => {
  const read = [], took = [];
  const WAIT_MS = 500; // where the browser says nothing
  const bodies = [["text/plain", '{"name": "evil"}'], ["application/x-www-form-urlencoded", "name=evil"]];
  const own = { "content-type": "application/json", "x-headrace-request": "1" };
  const json = '{"name": "evil", "user": "alice", "password": "a quiet river bends", "config": {}}';
  const soon = (ms) => new Promise((done) => setTimeout(done, ms));
  const ask = async (what, path, options) => {
    try {
      const answer = await fetch(base + path, { ...options, cache: "no-store" });
      const text = await answer.text();
      if (answer.type !== "opaque" && answer.type !== "opaqueredirect") read.push([what, path, answer.status, text.slice(0, 200)]);
    } catch (error) { /* the browser does not tell what was answered */ }
  };
  const put = (tag, fields) => new Promise((done) => {
    const node = Object.assign(document.createElement(tag), fields);
    node.onload = () => done(node);
    node.onerror = () => done(null);
    setTimeout(() => done(null), WAIT_MS);
    document.body.append(node);
  });
  const send = async (path, enctype) => {
    const frame = document.createElement("iframe");
    frame.name = "f" + Math.random();
    document.body.append(frame);
    const form = Object.assign(document.createElement("form"), { method: "post", action: base + path, enctype, target: frame.name });
    form.append(Object.assign(document.createElement("input"), { name: '{"name": "evil", "x": "', value: '"}' }));
    document.body.append(form);
    const sent = new Promise((done) => { frame.onload = done; setTimeout(done, WAIT_MS); });
    form.submit();
    await sent;
    look(frame, "form", path);
  };
  const look = (frame, what, path) => {
    try {
      const inside = frame.contentDocument;
      if (inside && inside.URL.startsWith(base)) read.push([what, path, inside.body.innerText.slice(0, 200)]);
    } catch (error) { /* it is of another origin */ }
  };
  for (const [method, path] of ways)
    for (const credentials of ["include", "omit"]) {
      if (method === "GET") {
        await ask("cors", path, { credentials });
        await ask("no-cors", path, { credentials, mode: "no-cors" });
        continue;
      }
      await ask("with JSON", path, { method, credentials, headers: own, body: method === "POST" ? json : undefined });
      if (method !== "POST") continue;
      for (const [type, body] of bodies) await ask("simple", path, { method, credentials, mode: "no-cors", body, headers: { "content-type": type } });
      await ask("without a body", path, { method, credentials, mode: "no-cors" });
    }
  for (const [method, path] of ways) {
    if (method === "POST") {
      for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) await send(path, enctype);
      navigator.sendBeacon(base + path, json);
      continue;
    }
    if (method !== "GET") continue;
    const there = await Promise.all([
      put("img", { src: base + path }), put("script", { src: base + path }),
      put("link", { rel: "stylesheet", href: base + path }),
    ]);
    for (const node of there) if (node) took.push([node.tagName, path]);
    const frame = await put("iframe", { src: base + path });
    if (frame) look(frame, "iframe", path);
    const source = new EventSource(base + path, { withCredentials: true });
    source.onopen = () => took.push(["events", path]);
    await soon(30);
    source.close();
  }
  const path = ways[0][1]; // one: browsers are slow with further ones where one was refused
  await new Promise((done) => {
    const socket = new WebSocket(base.replace("http", "ws") + path);
    socket.onopen = () => { took.push(["websocket", path]); done(); };
    socket.onerror = done;
    setTimeout(done, WAIT_MS);
  });
  return { read, took };
}
