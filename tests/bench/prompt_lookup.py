"""What guessing gains where a text repeats itself: python prompt_lookup.py BUNDLE [TOKENS ...].

The prompt is a passage that comes again and again, cut off in the middle. TOKENS are the numbers of
tokens guessed in a pass. Medians of 5, plain replies and guesses in turns.
"""

import sys
from statistics import median

import wiola_runtime as wr

PASSAGE = (
    "The family of Dashwood had long been settled in Sussex. Their estate was large, and their "
    "residence was at Norland Park, in the centre of their property, where, for many generations, "
    "they had lived in so respectable a manner as to engage the general good opinion of their "
    "surrounding acquaintance. "
)
ROUNDS = 5
NEW_TOKENS = 96


def main(bundle, *drafts):
    drafts = [int(count) for count in drafts] or [4, 8, 16, 32]
    with wr.load(bundle, verify=False) as model:
        passage = model.tokenizer.encode(PASSAGE * 3, begins=True)
        prompt = passage[: len(passage) * 3 // 4]
        times = {count: [] for count in (0, *drafts)}
        for _ in range(1 + ROUNDS):
            for count, found in times.items():
                reply = model.generate(
                    prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True, draft_tokens=count
                )
                found.append((reply.timings.decode_tokens_per_second, reply))
        plain = median(rate for rate, _ in times[0][1:])
        ids = times[0][0][1].token_ids
        for count, found in times.items():
            rate = median(rate for rate, _ in found[1:])
            same = all(reply.token_ids == ids for _, reply in found)
            print(
                f"{count:3} guessed: {rate:7.1f} tokens/s, {rate / plain:.2f} of plain; "
                f"{'the same tokens' if same else 'OTHER TOKENS'}; {found[0][1].guesses or ''}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
