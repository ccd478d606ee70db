"""Conversations as transformers' apply_chat_template writes them.

The templates have the forms that the published models of each family have.
"""
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from goldens.files import write_json

TOKENIZER = Path(__file__).resolve().parent.parent.parent / "models" / "demo" / "tokenizer.json"

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Roles must alternate') }}{% endif %}")
SPLIT_SYSTEM = ("{% if messages[0]['role'] == 'system' %}"
                "{% set system_message = messages[0]['content'] %}{% set loop_messages = messages[1:] %}"
                "{% else %}{% set loop_messages = messages %}{% endif %}")


def mistral(user, assistant, system=None):
    """user: the literals around a content. system: whose message it joins, "first" or "last"."""
    opened, closed = user
    plain = f"'{opened}' + message['content'] + '{closed}'"
    if system:
        joined = f"'{opened}' + system_message + '\\n\\n' + message['content'] + '{closed}'"
        says = (f"{{% if loop.{system} and system_message is defined %}}{{{{ {joined} }}}}"
                f"{{% else %}}{{{{ {plain} }}}}{{% endif %}}")
    else:
        says = f"{{{{ {plain} }}}}"
    return ((SPLIT_SYSTEM if system else "{% set loop_messages = messages %}") + "{{ bos_token }}"
            "{% for message in loop_messages %}" + ALTERNATE +
            "{% if message['role'] == 'user' %}" + says +
            "{% elif message['role'] == 'assistant' %}{{ " + assistant + " }}"
            "{% else %}{{ raise_exception('Only user and assistant') }}{% endif %}{% endfor %}")


LLAMA_2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
           "{% set system_message = messages[0]['content'] %}{% else %}"
           "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
           "{% for message in loop_messages %}" + ALTERNATE +
           "{% if loop.index0 == 0 and system_message != false %}"
           "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
           "{% else %}{% set content = message['content'] %}{% endif %}"
           "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
           "{% elif message['role'] == 'assistant' %}"
           "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
LLAMA_3 = ("{% for message in messages %}"
           "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
           "message['content'] | trim + '<|eot_id|>' %}"
           "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
           "{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA_31 = ("{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = \"26 Jul 2024\" %}"
            "{%- endif %}{%- if messages[0]['role'] == 'system' %}"
            "{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}"
            "{%- else %}{%- set system_message = \"\" %}{%- endif %}"
            "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"
            "{{- \"Cutting Knowledge Date: December 2023\\n\" }}"
            "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}{{- system_message }}{{- \"<|eot_id|>\" }}"
            "{%- for message in messages %}"
            "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
            "message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
            "{%- if add_generation_prompt %}"
            "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}")
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
          "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
CHATML_DEFAULT = ("{%- if messages[0]['role'] == 'system' %}"
                  "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}"
                  "{{- \"<|im_start|>system\\nYou're a helpful assistant.\\nBe kind.<|im_end|>\\n\" }}"
                  "{%- endif %}{%- for message in messages %}"
                  "{%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first)"
                  " or (message.role == \"assistant\") %}"
                  "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
                  "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
                  "{{- '<|im_start|>assistant\\n' }}{%- endif %}")
CHATML_THINKS = ("{%- for message in messages %}{%- set content = message.content %}"
                 "{%- if message.role == \"assistant\" and '</think>' in content %}"
                 "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
                 "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
                 "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
                 "{%- if enable_thinking is defined and enable_thinking is false %}"
                 "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}")

# What the published ones do with the rest of what they are told.
ALL = """{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}
{%- if tools %}
{%- for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{%- endfor %}
{%- endif %}
{%- for document in documents or [] %}
{{ loop.index }}: {{ document.title }} {{ document }}
{%- endfor %}
{%- for message in messages %}
<{{ message.role }}>
{{- message.thinking }}|{{ message.reasoning_content }}|{{ message.reasoning }}
{%- if message.content is string %}{{ message.content | trim }}
{%- elif message.content is none %}(nothing)
{%- else %}
{%- for part in message.content %}[{{ part['text'] }}]{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{ call.function.name }}({% for name, value in call.function.arguments.items() %}{{ name }}=
{{- value | tojson }}{{ ", " if not loop.last }}{% endfor %})
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
<assistant>{{ "thinks" if enable_thinking | default(true) }}{% endif %}"""

TEMPLATES = [
    ("llama-2", LLAMA_2),
    ("llama-3", LLAMA_3),
    ("llama-3.1", LLAMA_31),
    ("chatml", CHATML),
    ("chatml with a default system message", CHATML_DEFAULT),
    ("chatml that drops thoughts", CHATML_THINKS),
    ("mistral, the first",
     mistral(("[INST] ", " [/INST]"), "message['content'] + eos_token + ' '")),
    ("mistral with a system message in front",
     mistral((" [INST] ", " [/INST]"), "' ' + message['content'] + eos_token", "first")),
    ("mistral v3",
     mistral(("[INST] ", "[/INST]"), "' ' + message['content']|trim + eos_token", "last")),
    ("mistral tekken",
     mistral(("[INST]", "[/INST]"), "message['content'] + eos_token", "last")),
    ("all that a template is told", ALL),
]


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


CONVERSATIONS = [
    say(("user", "Hello")),
    say(("system", "Be brief."), ("user", "Hello")),
    say(("system", "  Two\n\nlines \n"), ("user", " spaces around \t"), ("assistant", "\n Yes.  "),
        ("user", "ünïcode 👍 and 'quotes' \"too\"")),
    say(("user", "One"), ("assistant", "Two"), ("user", "Three"), ("assistant", "Four"),
        ("user", "Five")),
    say(("user", "Why?"), ("assistant", "<think>\nhm\n</think>\n\nBecause."), ("user", "I see.")),
    say(("user", "One"), ("user", "Two")),
    say(("user", "")),
]


TOOLS = [{"type": "function", "function": {
    "name": "count", "description": "Counts <é> & 'ü'.",
    "parameters": {"type": "object", "required": ["of"],
                   "properties": {"of": {"type": "string"}, "up_to": {"type": "number"}}}}}]
CALLED = [
    *say(("user", "How many?")),
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function",
         "function": {"name": "count", "arguments": {"of": "ä\n", "up_to": 1.5, "all": None}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "2"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "A"},
                                      {"type": "text", "text": " B "}]}]
BEGUN = say(("user", "One"), ("assistant", "It is "))

# What else is asked for, by the names of apply_chat_template.
CASES = [(messages, {}) for messages in CONVERSATIONS] + [
    (BEGUN, {"continue_final_message": True, "add_generation_prompt": False}),
    (BEGUN[:1], {"add_generation_prompt": False}),
]
CASES_OF_ALL = [
    (CALLED, {"tools": TOOLS}),
    (PARTS, {"documents": [{"title": "t", "text": "x"}]}),
    (PARTS, {"continue_final_message": True, "add_generation_prompt": False}),
    (BEGUN, {"enable_thinking": False, "bos_token": "<B>"}),
    *(([*BEGUN, {"role": "assistant", "content": "x", name: "thoughts"}], {})
      for name in ("thinking", "reasoning", "reasoning_content")),
]


def rendered(tokenizer, messages, fields):
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False,
                                             **{"add_generation_prompt": True, **fields})
    except Exception:  # the template raises: there is no such conversation
        return None


def make(out_dir):
    golden = []
    for name, template in TEMPLATES:
        llama3 = name.startswith("llama-3")
        bos, eos = ("<|begin_of_text|>", "<|eot_id|>") if llama3 else ("<s>", "</s>")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), bos_token=bos,
                                            eos_token=eos, chat_template=template)
        cases = [{"messages": messages, "fields": fields,
                  "text": rendered(tokenizer, messages, fields)}
                 for messages, fields in CASES + (CASES_OF_ALL if template == ALL else [])]
        golden.append({"name": name, "template": template, "bos": bos, "eos": eos, "cases": cases})
    write_json(out_dir / "chat_templates" / "golden.json", golden, indent=1)
