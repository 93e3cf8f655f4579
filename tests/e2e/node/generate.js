// Streams one generation, then one of two outputs, cancels a third, and lets a fourth be refused. Prints what it saw as JSON.
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [address, protoFolder] = process.argv.slice(2);
const definition = loader.loadSync('tercet/v1/inference.proto', {
  includeDirs: [protoFolder], oneofs: true, longs: Number, enums: String, defaults: true,
});
const { Inference } = grpc.loadPackageDefinition(definition).tercet.v1;
const client = new Inference(address, grpc.credentials.createInsecure());

function stream() {
  return new Promise((resolve, reject) => {
    const events = [];
    let text = '';
    let tokens = 0;
    const call = client.generate({
      prompt: 'Once upon a time', sampling: { temperature: 0 }, stop: { maxTokens: 8, ignoreEos: true },
    });
    call.on('data', (event) => {
      events.push(event.event);
      if (event.event === 'delta') {
        text += event.delta.text;
        tokens += event.delta.tokenIds.length;
      }
    });
    call.on('error', reject);
    call.on('end', () => resolve({ events, text, tokens }));
  });
}

function twoOutputs() {
  return new Promise((resolve, reject) => {
    const tokens = [0, 0];
    let ends = [];
    const call = client.generate({
      prompt: 'Once upon a time', sampling: { seed: 7, n: 2 }, stop: { maxTokens: 8, ignoreEos: true },
      priority: -1, trafficClass: 'rag',
    });
    call.on('data', (event) => {
      if (event.event === 'delta') tokens[event.delta.outputIndex] += event.delta.tokenIds.length;
      if (event.event === 'finished') ends = event.finished.outputs.map((end) => end.outputIndex);
    });
    call.on('error', reject);
    call.on('end', () => resolve({ tokens, ends }));
  });
}

function cancel() {
  return new Promise((resolve) => {
    const call = client.generate({ prompt: 'Once upon a time', stop: { maxTokens: 2000, ignoreEos: true } });
    call.on('data', (event) => { if (event.event === 'delta') call.cancel(); });
    call.on('error', (error) => resolve(error.code));
  });
}

function refuse() {
  return new Promise((resolve) => {
    client.generateOnce({ prompt: 'x', sampling: { temperature: -1 } }, (error) => {
      resolve({ code: error.code, hasDetails: error.metadata.get('grpc-status-details-bin').length === 1 });
    });
  });
}

(async () => {
  const streamed = await stream();
  const outputs = await twoOutputs();
  console.log(JSON.stringify({ ...streamed, outputs, cancelled: await cancel(), refused: await refuse() }));
  client.close();
})();
