"""Files of the goldens."""
import json


def write_json(path, value, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, **kwargs)
    path.write_text(text + "\n", encoding="utf-8")
