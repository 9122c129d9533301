// The part of browser_clients.py that runs on a web page: the answers of OpenAI's client.
import OpenAI from "/openai/index.mjs";

/** Return the error that a call ends with: {status, message}. */
async function errorOf(call) {
  try {
    await call;
  } catch (error) {
    return { status: error.status, message: error.message, id: error.requestID };
  }
  return { status: 200, message: "no error" };
}

export async function ask({ url, key, texts, model, only }) {
  const options = { baseURL: url, dangerouslyAllowBrowser: true, maxRetries: 0 };
  const client = new OpenAI({ ...options, apiKey: key });
  const request = { model, input: texts };
  if (only) return { error: await errorOf(client.embeddings.create(request)) };
  const vectors = (answer) => answer.data.map((each) => [...each.embedding]);
  const { data, response, request_id: id } = await client.embeddings.create(request).withResponse();
  const unknown = await errorOf(client.embeddings.create({ ...request, model: "unknown" }));
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const body = JSON.stringify({ model, texts, special_tokens: false });
  const tokenized = await fetch(`${url}/tokenize`, { method: "POST", headers, body });
  const vocabulary = { headers: { "X-Vocabulary": tokenized.headers.get("X-Vocabulary") } };
  const input = (await tokenized.json()).results.map((each) => each.ids);
  const wrong = new OpenAI({ ...options, apiKey: "wrong" });
  return {
    base64: vectors(data), // what the client asks for by itself
    float: vectors(await client.embeddings.create({ ...request, encoding_format: "float" })),
    "token ids": vectors(await client.embeddings.create({ model, input }, vocabulary)),
    "unknown model": unknown,
    "wrong input": await errorOf(client.embeddings.create({ model, input: [] })),
    "wrong key": await errorOf(wrong.embeddings.create(request)),
    "request id": id,
    "request id of an error": unknown.id,
    timing: response.headers.get("Server-Timing"),
  };
}
