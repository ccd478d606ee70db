"""What the tokenizers library makes of a string, in full or as a hash, and of ids behind others."""
import hashlib


def digest(*parts):
    text = "\0".join(parts)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def case(tokenizer, text):
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.encode(text).ids

    def decode(ids, skip):
        return tokenizer.decode(ids, skip_special_tokens=skip)

    return {
        "text": text,
        "ids": plain,
        "with_special": whole,
        "decoded": decode(whole, False),
        "decoded_skipping": decode(whole, True),
        "decoded_plain": decode(plain, False),
        "decoded_plain_skipping": decode(plain, True),
    }


def stream(tokenizer, before, ids, skip):
    """The text of ids as vLLM streams it where others stand before them."""
    from tokenizers.decoders import DecodeStream

    decoder = DecodeStream(ids=before, skip_special_tokens=skip)
    return "".join(decoder.step(tokenizer, token) or "" for token in ids)


def continuations(tokenizer, texts):
    """What ids mean behind others. Left out are those of which one part ends within a character."""
    special = [i for i, t in sorted(tokenizer.get_added_tokens_decoder().items()) if t.special][:2]
    for text in texts:
        ids = tokenizer.encode(text).ids
        splits = [(ids[:cut], ids[cut:]) for cut in (0, 1, 2, 3, len(ids) // 2)]
        splits += [(special[-1:], ids), (special, ids[1:]), (ids[:3] + special, ids[3:])]
        for before, after in splits:
            after = after[:6]
            for skip in (True, False):
                start = tokenizer.decode(before, skip_special_tokens=skip)
                whole = tokenizer.decode(before + after, skip_special_tokens=skip)
                if start.endswith("\ufffd") or whole.endswith("\ufffd"):
                    continue
                streamed = stream(tokenizer, before, after, skip)
                assert start + streamed == whole, (before, after)
                yield {"before": before, "ids": after, "skip": skip, "text": streamed}


def hash_case(tokenizer, text):
    value = case(tokenizer, text)
    lists = (",".join(map(str, value[key])) for key in ("ids", "with_special"))
    texts = [value[key] for key in value if key.startswith("decoded")]
    return digest(*lists, *texts)
