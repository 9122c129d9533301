// The part of service_clients.py that runs in Node: prints the answers of clients as JSON.
import { InferenceClient } from "@huggingface/inference";
import { CohereClient, CohereClientV2 } from "cohere-ai";
import { Ollama } from "ollama";

const { url, text, texts } = JSON.parse(process.argv[2]);
const hub = new InferenceClient("none");
const endpoint = (name) => ({ endpointUrl: `${url}/hf/models/${name}` });
const found = {
  "hf featureExtraction": await hub.featureExtraction({ ...endpoint("search"), inputs: texts }),
  "hf sentenceSimilarity": await hub.sentenceSimilarity({
    ...endpoint("search"),
    inputs: { source_sentence: text, sentences: texts },
  }),
  "hf textClassification": await hub.textClassification({ ...endpoint("classes"), inputs: text }),
};
const tokens = await hub.tokenClassification({ ...endpoint("entities"), inputs: text });
const masks = await hub.fillMask({ ...endpoint("mask"), inputs: "the [MASK]", parameters: { top_k: 3 } });
const answer = await hub.questionAnswering({ ...endpoint("answers"), inputs: { question: "who", context: text } });
if (!Array.isArray(tokens) || masks.length !== 3 || typeof answer.answer !== "string") throw new Error("wrong shape");
try {
  await hub.fillMask({ ...endpoint("mask"), inputs: "the [MASK]", parameters: { top_k: 999 } });
} catch (error) {
  found["hf error"] = `${error.message} ${JSON.stringify(error.httpResponse?.body ?? "")}`;
}
const first = new CohereClient({ token: "none", environment: `${url}/cohere` });
const second = new CohereClientV2({ token: "none", environment: `${url}/cohere` });
const one = await first.embed({ texts, model: "search", inputType: "search_query" });
found["cohere v1 embed"] = one.embeddings;
const two = await second.embed({ texts, model: "search", inputType: "search_document", embeddingTypes: ["float"], outputDimension: 8 });
found["cohere v2 embed"] = two.embeddings.float;
const ranked = await second.rerank({ model: "reranker", query: "a cat", documents: texts, topN: 2 });
found["cohere v2 rerank"] = ranked.results.map((each) => ({ index: each.index, relevance_score: each.relevanceScore }));
const local = new Ollama({ host: `${url}/ollama` });
found["ollama embed"] = (await local.embed({ model: "search", input: texts })).embeddings;
found["ollama list"] = (await local.list()).models.map((each) => each.name);
console.log(JSON.stringify(found));
