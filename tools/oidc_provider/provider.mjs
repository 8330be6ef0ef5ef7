// The certified OIDC provider, for tests: people log in at its own pages, by any name and password.
// node provider.mjs MODULES SETTINGS: where its packages are, and a file of JSON: port, cert, key, client, jwks, idTokenSeconds.
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, file] = process.argv.slice(2);
const settings = JSON.parse(readFileSync(file, "utf8"));
const at = createRequire(`${modules}/`).resolve("oidc-provider");
const { default: Provider } = await import(pathToFileURL(at));

const server = createServer({ cert: readFileSync(settings.cert), key: readFileSync(settings.key) });
server.listen(settings.port, "127.0.0.1", () => {
  const provider = new Provider(`https://127.0.0.1:${server.address().port}`, {
    clients: [
      {
        client_id: settings.client,
        application_type: "native",
        token_endpoint_auth_method: "none",
        redirect_uris: ["http://127.0.0.1/callback"],
        response_types: ["code"],
        grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
      },
    ],
    cookies: { keys: ["of a test"] },
    features: { deviceFlow: { enabled: true }, revocation: { enabled: true } },
    jwks: settings.jwks,
    ttl: { IdToken: settings.idTokenSeconds, AccessToken: 300, RefreshToken: 3600, Session: 3600, Grant: 3600, Interaction: 600, DeviceCode: 600 },
  });
  provider.on("server_error", (_, error) => console.error(error));
  server.on("request", provider.callback());
  console.log(`ready ${server.address().port}`);
});
