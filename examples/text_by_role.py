"""Next characters, a client for each role of a play. Run: python examples/text_by_role.py [--shakespeare]

With --shakespeare the data are eight plays with 187 roles (0.5 MB, fetched once); without, a few lines of one.
"""

import sys

import numpy as np

import fedweave as fw

LENGTH = 20
PLAY = """
MACBETH: To-morrow, and to-morrow, and to-morrow, creeps in this petty pace from day to day to the last syllable of
MACBETH: recorded time, and all our yesterdays have lighted fools the way to dusty death. Out, out, brief candle!
MACBETH: Life's but a walking shadow, a poor player that struts and frets his hour upon the stage
WITCHES: Double, double toil and trouble; fire burn and cauldron bubble. Double, double toil and trouble;
WITCHES: When shall we three meet again, in thunder, lightning, or in rain? When the hurlyburly's done,
LADY: Come, you spirits that tend on mortal thoughts, unsex me here, and fill me from the crown to the toe top-full
LADY: Out, damned spot! out, I say! One: two: why, then, 'tis time to do't. Hell is murky! Fie, my lord, fie!
"""


def by_role(play):
    """Return samples of ``LENGTH`` characters with those that follow, and whose they are."""
    speeches = dict[str, str]()
    for line in play.strip().splitlines():
        role, text = line.split(": ", 1)
        speeches[role] = speeches.get(role, "") + text + " "
    alphabet = sorted(set("".join(speeches.values())))
    x, y, group = [], [], []
    for number, text in enumerate(speeches.values()):
        code = np.array([alphabet.index(c) for c in text])
        for start in range(0, code.size - LENGTH, 5):
            x.append(code[start : start + LENGTH])
            y.append(code[start + 1 : start + LENGTH + 1])
            group.append(number)
    return fw.data.from_arrays(np.array(x), np.array(y), group=np.array(group), classes=len(alphabet))


if __name__ == "__main__":
    data = fw.data.load("shakespeare") if "--shakespeare" in sys.argv else by_role(PLAY)
    # Tokens (n, T) are next-token prediction, groups are the clients: nothing else has to be said.
    result = fw.run(fw.Experiment(fw.methods.fedavg(2), data=data, model="lstm", rounds=20, epochs=5, lr=1.0))
    print(f"{data}: perplexity {result.rounds['perplexity'][0]:.1f}, then {result.rounds['perplexity'][-1]:.1f}")
