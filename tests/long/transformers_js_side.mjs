// The side of Node in transformers_js.py: node transformers_js_side.mjs JOBS RESULTS, in a folder with the npm package.
//
// JOBS: [{folder, class, texts, computed, pairs}], of which the first `computed` texts go through the model. RESULTS: for each job {tokens, pairs, ids, outputs: {dtype: {name: [dims, values]}}}.
import fs from 'node:fs'
import path from 'node:path'
import * as library from '@huggingface/transformers'

library.env.allowRemoteModels = false
const [jobs, results] = process.argv.slice(2)
const numbers = tensor => Array.from(tensor.data, Number)
const found = []
for (const job of JSON.parse(fs.readFileSync(jobs))) {
  library.env.localModelPath = path.dirname(job.folder)
  const name = path.basename(job.folder)
  const tokenizer = await library.AutoTokenizer.from_pretrained(name)
  const tokens = job.texts.map(text => numbers(tokenizer(text, { truncation: true }).input_ids))
  const pairs = job.pairs.map(([first, second]) => {
    const encoded = tokenizer(first, { text_pair: second, truncation: true })
    return [numbers(encoded.input_ids), encoded.token_type_ids ? numbers(encoded.token_type_ids) : null]
  })
  const inputs = tokenizer(job.texts.slice(0, job.computed), { padding: true, truncation: true })
  const outputs = {}
  for (const dtype of ['fp32', 'fp16', 'q8']) {
    const model = await library[job.class].from_pretrained(name, { dtype })
    const computed = Object.entries(await model(inputs)).filter(([, value]) => value?.dims)
    outputs[dtype] = Object.fromEntries(computed.map(([key, tensor]) => [key, [tensor.dims, numbers(tensor)]]))
    await model.dispose()
  }
  found.push({ tokens, pairs, ids: [inputs.input_ids.dims, numbers(inputs.input_ids)], outputs })
}
fs.writeFileSync(results, JSON.stringify(found))
