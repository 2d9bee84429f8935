"""The words of the generated treebank, by part of speech, with the label that each has alone.

Labels run from 0 (very negative) over 2 (neutral) to 4 (very positive).
"""

ADJECTIVES = {
    0: "awful dreadful horrible atrocious abysmal unbearable disastrous wretched",
    1: "dull bland clumsy weak tedious shallow stale predictable muddled flat forgettable lazy"
    " awkward lifeless sluggish uneven",
    2: "short long recent early quiet modern domestic foreign annual silent old new young local"
    " urban rural",
    3: "good charming funny clever warm fresh lively engaging graceful witty solid pleasant smart"
    " likable touching vivid",
    4: "brilliant superb magnificent dazzling masterful wonderful stunning exquisite",
}
NOUNS = {
    0: "disaster travesty catastrophe torture",
    1: "mess bore failure cliche letdown chore gimmick blunder",
    2: "film movie story plot script cast actor actress director camera scene ending dialogue"
    " character soundtrack drama comedy thriller sequel picture audience premise production"
    " performance screenplay editing score setting narrative theme",
    3: "delight treat pleasure charm surprise success gem joy",
    4: "masterpiece triumph marvel tour-de-force",
}
# Verbs of one person and one thing; in the form after "does" and in the one after "the film".
VERBS = {
    0: "ruins:ruin destroys:destroy wrecks:wreck butchers:butcher",
    1: "spoils:spoil weakens:weaken bores:bore wastes:waste cheapens:cheapen hurts:hurt",
    2: "shows:show follows:follow describes:describe offers:offer presents:present uses:use"
    " features:feature contains:contain becomes:become resembles:resemble introduces:introduce"
    " explores:explore",
    3: "enlivens:enliven improves:improve enriches:enrich supports:support amuses:amuse helps:help",
    4: "perfects:perfect elevates:elevate illuminates:illuminate transcends:transcend",
}
ADVERBS = {
    0: "horribly unbearably",
    1: "clumsily poorly badly lazily",
    2: "again today here often usually throughout",
    3: "nicely neatly smoothly warmly",
    4: "brilliantly beautifully",
}

DETERMINERS = ("the", "this", "that", "its", "every", "one", "another")
PREPOSITIONS = ("of", "about", "with", "from", "behind", "around")
PRONOUNS = ("it", "everything", "this", "someone")
COPULAS = ("is", "seems", "looks", "feels", "remains", "was")
AUXILIARIES = ("does", "did", "can", "could", "will", "would")

# Operators: a word that changes the label of the phrase next to it; alone it is neutral.
NEGATORS = ("not", "never", "hardly")
NEGATORS_OF_VERBS = ("not", "n't", "never")
NEGATING_VERBS = ("lacks", "avoids", "misses", "escapes")
INTENSIFIERS = ("very", "really", "truly", "extremely", "deeply", "incredibly")
DIMINISHERS = ("slightly", "somewhat", "mildly", "fairly", "rather")
CONTRASTS = ("but", "yet")
CONCESSIONS = ("although", "though", "while")
