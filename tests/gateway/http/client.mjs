// What test_node.py runs: one part of it a time, which prints JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0, timeout: 30_000 });
const chat = { model: "bytes", messages: [{ role: "user", content: "hello" }] };
const parameters = { type: "object", properties: { city: { type: "string" } } };

async function chats() {
  const once = await client.chat.completions.create(chat);
  let streamed = "";
  let end = null;
  for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) {
    streamed += chunk.choices[0].delta.content ?? "";
    end = chunk.choices[0].finish_reason ?? end;
  }
  return { once: once.choices[0].message.content, streamed, end };
}

async function tools() {
  const asked = [];
  const weather = (given) => {
    asked.push(given);
    return "sunny";
  };
  const runner = client.chat.completions.runTools({
    ...chat,
    tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: weather } }],
  });
  const answer = await runner.finalContent();
  const stream = client.chat.completions.stream({
    ...chat,
    tools: [{ type: "function", function: { name: "weather", parameters } }],
  });
  const made = await stream.finalChatCompletion();
  return { asked, answer, streamed: made.choices[0].message.tool_calls[0].function.arguments };
}

async function errors() {
  const found = [];
  for (const wrong of [{ model: "gone" }, { top_p: 0 }]) {
    try {
      await client.chat.completions.create({ ...chat, ...wrong });
    } catch (error) {
      found.push(`${error.constructor.name} ${error instanceof OpenAI.NotFoundError ? error.code : error.param}`);
    }
  }
  return found;
}

async function leave() {
  for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) {
    if (chunk.choices[0].delta.content) return chunk.choices[0].delta.content;
  }
}

const parts = { chat: chats, tools, errors, leave };
console.log(JSON.stringify((await parts[process.argv[2]]()) ?? null));
