// The part of service_clients.py that runs in Node: prints the calls as run.py does.
import { InferenceClient } from "@huggingface/inference";
import { CohereClient, CohereClientV2 } from "cohere-ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const { url, key, text, texts } = JSON.parse(process.argv[2]);
const hub = new InferenceClient(key);
const endpoint = (name) => ({ endpointUrl: `${url}/hf/models/${name}` });
const first = new CohereClient({ token: key, environment: `${url}/cohere` });
const second = new CohereClientV2({ token: key, environment: `${url}/cohere` });
const local = new Ollama({ host: `${url}/ollama`, headers: { Authorization: `Bearer ${key}` } });
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const vectors = (answer) => answer.data.map((each) => each.embedding);
const pairs = (answer) => answer.results.map((each) => [each.index, each.relevanceScore]);
const found = [];

async function call(name, kind, wanted, run) {
  try {
    found.push([`node: ${name}`, kind === "gives" ? kind : `${kind}, but it gives`, wanted, await run()]);
  } catch (error) {
    const body = error.httpResponse?.body ?? error.body ?? "";
    found.push([`node: ${name}`, kind === "refuses" ? kind : `${kind}, but it refuses`, wanted, `${error} ${JSON.stringify(body)}`]);
  }
}
const gives = (name, wanted, run) => call(name, "gives", wanted, run);
const refuses = (name, message, run) => call(name, "refuses", message, run);

const model = "e5";
await gives("openai", "whole", async () => vectors(await openai.embeddings.create({ model, input: texts })));
await gives("openai, float", "whole", async () =>
  vectors(await openai.embeddings.create({ model, input: texts, encoding_format: "float" })),
);
await gives("openai, dimensions", "cut", async () =>
  vectors(await openai.embeddings.create({ model, input: texts, dimensions: 8 })),
);
await gives("openai, models", "names", async () => (await openai.models.list()).data.map((each) => each.id));
await refuses("openai, unknown model", "no model has this name", () =>
  openai.embeddings.create({ model: "text-embedding-3-small", input: texts }),
);
await gives("featureExtraction", "whole", () => hub.featureExtraction({ ...endpoint(model), inputs: texts }));
await gives("sentenceSimilarity", "similarities", () =>
  hub.sentenceSimilarity({ ...endpoint(model), inputs: { source_sentence: text, sentences: texts } }),
);
await gives("textClassification", "classes", async () =>
  (await hub.textClassification({ ...endpoint("classes"), inputs: text })).map((each) => [each.label, each.score]),
);
await gives("tokenClassification", "entities", async () =>
  (await hub.tokenClassification({ ...endpoint("entities"), inputs: text })).map((each) => [
    each.entity_group, each.score, each.start, each.end,
  ]),
);
await gives("fillMask", "fillings", async () =>
  (await hub.fillMask({ ...endpoint("mask"), inputs: "the [MASK]", parameters: { top_k: 3 } })).map((each) => [
    each.token_str, each.score,
  ]),
);
await gives("questionAnswering", "answer", async () => {
  const { answer, score } = await hub.questionAnswering({ ...endpoint("answers"), inputs: { question: "who", context: text } });
  return [answer, score];
});
await refuses("fillMask, top_k", "top_k: give at most", () =>
  hub.fillMask({ ...endpoint("mask"), inputs: "the [MASK]", parameters: { top_k: 999 } }),
);
await gives("cohere v1 embed", "queries", async () =>
  (await first.embed({ texts, model, inputType: "search_query" })).embeddings,
);
await gives("cohere v2 embed", "cut documents", async () => {
  const asked = { texts, model, inputType: "search_document", embeddingTypes: ["float"], outputDimension: 8 };
  return (await second.embed(asked)).embeddings.float;
});
await gives("cohere v2 rerank", "two ranks", async () =>
  pairs(await second.rerank({ model: "reranker", query: text, documents: texts, topN: 2 })),
);
await refuses("cohere, unknown model", "no model has this name", () =>
  second.embed({ texts, model: "embed-v4.0", inputType: "search_query", embeddingTypes: ["float"] }),
);
await gives("ollama embed", "unit", async () => (await local.embed({ model, input: texts })).embeddings);
await gives("ollama list", "latest names", async () => (await local.list()).models.map((each) => each.name));
await refuses("ollama, unknown model", "no model has this name", () => local.embed({ model: "llama3", input: texts }));
console.log(JSON.stringify(found));
