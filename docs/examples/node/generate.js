// Streams an answer: node generate.js [--address HOST:PORT] [--ca FILE] [--timeout SECONDS] [--max-tokens N] QUESTION
//
// Ctrl-C cancels the request, and the mesh stops working on it at once. Of a refusal it prints the reason, and when to ask
// again. A key is read from TERCET_API_KEY.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');

const EXAMPLES = path.join(__dirname, '..');
const PROTOS = path.join(EXAMPLES, '..', '..', 'proto');

// Counts stay numbers; a seed has 64 bits, and is a text.
const definition = loader.loadSync('tercet/v1/inference.proto', {
  includeDirs: [PROTOS], longs: String, enums: String, defaults: true, oneofs: true,
});
const { Inference } = grpc.loadPackageDefinition(definition).tercet.v1;
const details = protobuf.loadSync(path.join(EXAMPLES, 'errors.proto'));

/** What the mesh says of an error besides code and message: its stable reason, and seconds until another attempt. */
function explain(error) {
  const found = { reason: '', metadata: {}, retryAfterSeconds: null };
  const [trailer] = error.metadata?.get('grpc-status-details-bin') ?? [];
  if (trailer === undefined) {
    // gRPC's own, such as a gateway that is not there.
    return found;
  }
  for (const { type_url: url, value } of details.lookupType('google.rpc.Status').decode(trailer).details) {
    const name = url.slice(url.lastIndexOf('/') + 1);
    if (name === 'google.rpc.ErrorInfo') {
      const info = details.lookupType(name).decode(value);
      found.reason = info.reason;
      found.metadata = info.metadata;
    } else if (name === 'google.rpc.RetryInfo') {
      const { seconds, nanos } = details.lookupType(name).decode(value).retryDelay;
      found.retryAfterSeconds = Number(seconds) + nanos / 1e9;
    }
  }
  return found;
}

/** The request of a question. Fields that are left out take the model's defaults. */
function toRequest(question, maxTokens) {
  return {
    chat: { messages: [{ role: 'user', content: question }] },
    sampling: { temperature: 0 },
    stop: maxTokens === undefined ? {} : { maxTokens: Number(maxTokens) },
  };
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      address: { type: 'string', default: '127.0.0.1:50051' },
      ca: { type: 'string' },
      timeout: { type: 'string' },
      'max-tokens': { type: 'string' },
    },
  });
  if (positionals.length === 0) {
    console.error('usage: node generate.js [--address HOST:PORT] [--ca FILE] [--timeout SECONDS] [--max-tokens N] QUESTION');
    process.exitCode = 2;
    return;
  }
  const credentials = values.ca
    ? grpc.credentials.createSsl(fs.readFileSync(values.ca))
    : grpc.credentials.createInsecure();
  const metadata = new grpc.Metadata();
  if (process.env.TERCET_API_KEY) {
    metadata.set('authorization', `Bearer ${process.env.TERCET_API_KEY}`);
  }
  // The mesh knows the deadline, too: what cannot come in time it refuses at once.
  const options = values.timeout ? { deadline: Date.now() + 1000 * Number(values.timeout) } : {};

  const client = new Inference(values.address, credentials);
  const call = client.generate(toRequest(positionals.join(' '), values['max-tokens']), metadata, options);
  process.once('SIGINT', () => call.cancel());
  try {
    // Reading one event after the other is what tells the mesh how fast this side is.
    for await (const event of call) {
      if (event.event === 'delta') {
        process.stdout.write(event.delta.text);
      } else if (event.event === 'finished') {
        const { outputs: [end], usage } = event.finished;
        console.log();
        console.error(`${end.reason}, ${usage.completionTokens} tokens`);
      }
    }
  } catch (error) {
    const { reason, metadata: variables, retryAfterSeconds } = explain(error);
    console.error(`${reason || grpc.status[error.code]}: ${error.details}`, variables);
    if (retryAfterSeconds !== null) {
      console.error(`ask again in ${retryAfterSeconds} s`);
    }
    process.exitCode = error.code === grpc.status.CANCELLED ? 130 : 1;
  } finally {
    client.close();
  }
}

main();
