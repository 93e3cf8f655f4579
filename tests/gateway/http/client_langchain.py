"""What test_langchain.py runs where LangChain is: asks, streams, calls a tool, and gives its result back."""

import json
import os
import sys
from functools import reduce
from operator import add

from langchain_openai import ChatOpenAI


def weather(city: str) -> str:
    """What it is like."""
    return f"sunny in {city}"


chat = ChatOpenAI(base_url=os.environ["BASE_URL"], api_key="none", model="bytes", max_retries=0, timeout=30)
once = chat.invoke("hello")
streamed = "".join(part.content for part in chat.stream("hello"))
calling = chat.bind_tools([weather])
pieces = reduce(add, calling.stream("Is it raining?"))
said = calling.invoke("Is it raining?")
(call,) = said.tool_calls
result = {"role": "tool", "tool_call_id": call["id"], "content": weather(**call["args"])}
answer = calling.invoke([("user", "Is it raining?"), said, result])
schema = {"title": "Place", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
place = chat.with_structured_output(schema).invoke("Where?")
found = {
    "once": [once.content, once.response_metadata["finish_reason"], once.usage_metadata["output_tokens"]],
    "streamed": streamed,
    "calls": [[each["name"], each["args"]] for each in (*pieces.tool_calls, call)],
    "answer": answer.content,
    "place": place,
}
sys.stdout.write(json.dumps(found))
