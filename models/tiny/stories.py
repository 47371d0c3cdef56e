"""A grammar of little stories: the training text of the embedded model.

Every story is drawn from a plot (a function below), filled with characters, things and places that stay the same to
the end. The text depends on the seed alone: `story(seed, index)` always returns the same string.

    python stories.py --count 3 --seed sample       # print three stories

Template language, see `Story.expand`:
    [one|two|three]   one of the alternatives, drawn anew each time
    {key}             a fact of this story; {Key} is the same with a capital letter
    {a:key}           the fact after "a" or "an"
"""

import argparse
import random
import re

GIRLS = """Lily Anna Mia Emma Sara Lucy Ella Rosie Molly Nora Zoe Amy Kate Ruby Daisy Clara Ivy Maya Tara Jane Sophie
Grace Hazel Nina Lola Betty Alice Julia Eva Holly Penny Polly Susie Mary Lena Rita Wendy Annie Nelly Olivia Leah
Tessa Iris Flora Bella Elsa Heidi Sally Jenny Carla Dora Marta""".split()
BOYS = """Tom Ben Tim Max Sam Jack Leo Finn Oscar Noah Jake Luke Theo Peter Adam Henry Billy Charlie Toby Eli Dan Hugo
Owen Felix Milo Alex Paul Mark David James Harry George Fred Simon Robin Joe Nick Andy Bobby Oliver Lucas Martin Jim
Walter Arthur Ned Ravi Omar Kai Johnny Victor Frank""".split()
PET_NAMES = """Pip Bramble Fern Dot Coco Nutmeg Pepper Biscuit Button Clover Willow Benny Tilly Hoppy Patch Poppy Ziggy
Honey Rusty Bella Bruno Muffin Sunny Maple Pebble Olive Cocoa Ginger Dusty Berry Momo Lulu Teddy Hopper""".split()

ANIMAL_HEROES = ["fox", "rabbit", "bear", "mouse", "squirrel", "duck", "hedgehog", "owl", "frog", "turtle", "puppy",
                 "kitten", "beaver", "badger", "lamb", "raccoon", "otter", "mole"]
CHILD_ADJECTIVES = ["little", "little", "little", "little", "young", "kind", "curious", "cheerful", "clever", "brave",
                    "quiet", "happy", "friendly"]
CHILD_HOMES = ["in a small house [near the sea|by the river|next to a big garden|at the end of a quiet street]",
               "in a little [town|village] [by the sea|near the mountains|at the edge of a forest]",
               "in a [white|yellow|blue|red] house on [a green hill|a busy street|a small farm]",
               "on a farm with many animals", "in a big city full of lights"]
ANIMAL_HOMES = ["in a [big|green|quiet|deep] forest",
                "in a cozy [burrow|den|home] under [an old oak tree|a tall pine tree]",
                "near a [clear|small|blue] pond", "at the edge of a [sunny|wide|green] meadow",
                "in a warm home by the river"]
CHILD_HOBBIES = ["play outside", "read books about [animals|the stars|the sea|brave knights]", "draw pictures",
                 "run and jump in the garden", "sing silly songs", "play with {his} toys", "look at the clouds",
                 "help {his} [mom|dad] in the kitchen", "tell funny stories", "collect [shiny stones|leaves|shells]",
                 "build things out of [wood|paper|blocks]", "go on little adventures", "ask questions about everything"]
ANIMAL_HOBBIES = ["play in the tall grass", "look at the clouds", "sing silly songs",
                  "collect [shiny stones|leaves|acorns]",
                  "run through the [woods|meadow]", "listen to the birds", "go on little adventures",
                  "splash in the puddles", "count the stars at night", "ask questions about everything"]
DAYS = ["One day", "One day", "One [sunny|warm|bright|cool|quiet|fine] [morning|day|afternoon]",
        "One [spring|summer|fall] morning", "On a [sunny|bright|lovely] [morning|day]", "One Saturday morning"]

COLORS = ["red", "blue", "green", "yellow", "purple", "orange", "white", "pink"]
# noun -> words that may stand before it
LOSABLE = {
    "ball": COLORS + ["shiny", "bouncy", "striped"], "teddy bear": ["brown", "soft", "old", "fluffy", "white"],
    "doll": ["pretty", "old", "soft", "tiny"], "toy car": COLORS + ["shiny", "fast"],
    "toy boat": COLORS + ["wooden", "small"], "toy train": COLORS + ["wooden", "shiny"],
           "hat": COLORS + ["warm", "silly"],
    "scarf": COLORS + ["warm", "soft", "long"], "whistle": ["silver", "tin", "shiny", "loud"],
    "book": ["old", "thick", "blue", "red"], "blanket": ["soft", "blue", "warm", "fuzzy"],
    "drum": ["little", "red", "loud", "round"], "marble": ["green", "blue", "shiny", "golden"],
    "flute": ["wooden", "silver", "little"], "toy robot": ["shiny", "silver", "blue", "noisy"],
    "umbrella": COLORS + ["big", "striped"], "bell": ["golden", "tiny", "silver"],
}
SHAREABLE = {
    "ball": COLORS + ["shiny", "bouncy", "striped"], "kite": COLORS + ["big", "beautiful"],
    "toy truck": COLORS + ["big", "shiny"], "bike": COLORS + ["new", "shiny"],
    "drum": ["new", "red", "big"], "wagon": ["red", "blue", "wooden", "new"], "toy plane": COLORS + ["fast", "new"],
             "scooter": COLORS + ["new", "fast"], "hula hoop": ["pink", "yellow", "shiny"]}
# to ..., in/at ..., spots found there
PLACES = [
    ("to the park", "in the park",
     ["under a bench", "behind the big slide", "next to the fountain", "near the swings"]),
    ("to the beach", "at the beach", ["behind a big rock", "next to a sandcastle", "under a beach towel"]),
    ("to the garden", "in the garden",
     ["under the rose bush", "behind the watering can", "between the tall sunflowers"]),
    ("to the forest", "in the forest", ["under a pile of leaves", "next to an old log", "behind a mossy stone"]),
    ("to the meadow", "in the meadow", ["in the tall grass", "next to a wide flat stone", "among the daisies"]),
    ("to the pond", "by the pond", ["between the reeds", "on a flat stone", "under a willow tree"]),
    ("to the farm", "at the farm", ["behind the barn", "in the soft hay", "next to the chicken house"]),
    ("to the hill", "on the hill", ["under the old oak tree", "in the tall grass", "behind a round stone"]),
    ("to the river", "by the river", ["between two rocks", "near the little bridge", "under a bush"]),
]
PLAY_PLACES = [p for p in PLACES if p[0].split()[-1] in ("park", "garden", "meadow", "farm", "hill")]
INDOOR = ["under the bed", "behind the sofa", "under the table", "in the kitchen", "behind the door", "in the closet",
          "under the pillow", "on the shelf", "behind the curtain", "in the toy box", "on the stairs", "under the rug"]
FUNNY_FINDS = ["an old sock", "a dusty spoon", "a sleepy spider", "two crumbs", "a lost button", "a blue feather",
               "a broken pencil", "one old shoe", "a paper star", "a nut"]
LOST_ANIMALS = ["kitten", "puppy", "duckling", "baby rabbit", "baby bird", "baby squirrel", "lamb", "baby owl"]
FOODS = ["cookies", "apples", "pancakes", "strawberries", "sandwiches", "muffins", "pears", "cherries"]
TREATS = ["hot soup", "warm milk", "apple pie", "honey cakes", "fresh bread", "hot chocolate", "berry pie"]
MORALS_END = ["[It was the best day ever|It had been a wonderful day|It was a day to remember].",
              "That night, {name} fell asleep with a [big |warm |]smile.",
              "And they all lived happily ever after.",
              "That night, {he} [dreamed sweet dreams|slept very well].",
              "{He} [went to bed|fell asleep that night] with a [happy|warm|glad] heart.",
              "The end."]
PAIR_ENDINGS = ["[It was the best day ever|It had been a wonderful day|It was a day to remember].",
                "That night, they both fell asleep with a [big |warm |]smile.",
                "And they all lived happily ever after.",
                "They went home with [happy|warm|glad] hearts.",
                "The end."]


def with_article(phrase):
    """'old map' -> 'an old map'."""
    vowel = phrase[0].lower() in "aeiou" and not re.match(r"(?i)(uni|use|one\b|eu)", phrase)
    return ("an " if vowel else "a ") + phrase


class Story:
    """The facts of one story and the sentences told so far."""

    def __init__(self, rng):
        self.rng = rng
        self.facts = {}
        self.parts = []
        self.pair = False  # two heroes from the first sentence on
        self.direct_share = 0.0  # how often a story begins without introducing its hero

    def pick(self, options):
        return self.rng.choice(list(options))

    def chance(self, probability):
        return self.rng.random() < probability

    def lookup(self, match):
        key = match.group(1)
        if key.startswith("a:"):
            return with_article(self.expand(self.facts[key[2:]]))
        if key in self.facts:
            return self.expand(self.facts[key])
        value = self.expand(self.facts[key[0].lower() + key[1:]])
        return value[0].upper() + value[1:]

    def expand(self, template):
        while "[" in template:
            template = re.sub(r"\[([^\[\]]*)\]", lambda m: self.pick(m.group(1).split("|")), template)
        return re.sub(r"\{([^{}]*)\}", self.lookup, template)

    def say(self, *variants):
        """Append one of the variants; each may hold several sentences."""
        if not self.parts:  # a first sentence names the hero
            variants = [re.sub(r"\{[Hh]e\}", "{name}", re.sub(r"^\{His\}", "{name}'s", v), count=1)
                        if "{name}" not in v else v for v in variants]
        sentence = self.expand(self.pick(variants)).strip()
        self.parts.append(sentence[0].upper() + sentence[1:])

    def maybe(self, probability, *variants):
        if self.chance(probability):
            self.say(*variants)

    def text(self):
        joined = re.sub(r" +", " ", " ".join(self.parts))
        return re.sub(r"(^|[.!?] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), joined)


# ---------------------------------------------------------------------------------------------------- characters

def set_person(s, prefix, name, is_girl):
    words = ("she", "her", "her", "herself") if is_girl else ("he", "him", "his", "himself")
    s.facts.update({prefix + "he": words[0], prefix + "him": words[1], prefix + "his": words[2],
                    prefix + "himself": words[3]})
    s.facts["name" if prefix == "" else {"f": "friend", "m": "mom"}[prefix]] = name


def cast(s, animal_share=0.25, elders=("mom", "dad", "grandma", "grandpa")):
    """Hero, friend and elder of this story."""
    s.animal = s.chance(animal_share)
    girl, friend_girl = s.chance(0.5), s.chance(0.5)
    if s.animal:
        name, friend = s.rng.sample(PET_NAMES, 2)
        s.facts["kind"], s.facts["friend_kind"] = s.rng.sample(ANIMAL_HEROES, 2)
        s.facts["adj"] = s.pick(CHILD_ADJECTIVES + ["small", "tiny"])
        s.facts["home"], s.facts["hobby"] = s.pick(ANIMAL_HOMES), s.pick(ANIMAL_HOBBIES)
    else:
        name = s.pick(GIRLS if girl else BOYS)
        friend = s.pick([other for other in (GIRLS if friend_girl else BOYS) if other != name])
        s.facts["kind"] = "girl" if girl else "boy"
        s.facts["friend_kind"] = "girl" if friend_girl else "boy"
        s.facts["adj"] = s.pick(CHILD_ADJECTIVES)
        s.facts["home"], s.facts["hobby"] = s.pick(CHILD_HOMES), s.pick(CHILD_HOBBIES)
    s.facts["home"], s.facts["hobby"] = s.expand(s.facts["home"]), s.facts["hobby"]
    set_person(s, "", name, girl)
    set_person(s, "f", friend, friend_girl)
    elder = s.pick(elders)
    set_person(s, "m", "{his} " + elder, elder in ("mom", "grandma"))
    s.facts["elder"] = elder.capitalize()
    s.facts["hobby"] = s.expand(s.facts["hobby"])
    s.facts["day"] = s.expand(s.pick(DAYS))


def place(s, choices=PLACES):
    s.facts["to_place"], s.facts["in_place"], spots = s.pick(choices)
    s.facts["spot"] = s.pick(spots)


def thing(s, table):
    noun = s.pick(sorted(table))
    s.facts["noun"] = noun
    s.facts["thing"] = s.pick(table[noun]) + " " + noun


def opening(s, *own_traits, hobby=0.5):
    """Introduce the hero; own_traits are sentences the plot needs."""
    if s.direct_share and not s.animal and "old" not in s.facts and s.chance(s.direct_share):
        if own_traits:
            s.say(*own_traits)
        return
    s.say("Once upon a time, there was {a:adj} {kind} named {name}.",
          "Once upon a time, there was {a:adj} {kind} named {name}.",
          "Once upon a time, {a:adj} {kind} named {name} lived {home}.",
          "There once was {a:adj} {kind} named {name} who lived {home}.",
          "{name} was {a:adj} {kind} who lived {home}.",
          "{name} was {a:adj} {kind} who loved to {hobby}.",
          "Once there was {a:adj} {kind} called {name}.",
          "A long time ago, there was {a:adj} {kind} named {name}.",
          "{Home}, there lived {a:adj} {kind} named {name}.",
          "This is the story of {a:adj} {kind} named {name}.",
          "There was once {a:adj} {kind} whose name was {name}.")
    told = s.parts[-1]
    if s.facts["hobby"] not in told and s.chance(hobby):
        s.say("{He} loved to {hobby}.", "{name} liked to {hobby}.",
              "Every day, {he} [liked|loved] to {hobby}.", "More than anything, {he} loved to {hobby}.")
    if own_traits:
        s.say(*own_traits)


def pair_opening(s):
    """Introduce hero and friend at once."""
    s.pair = True
    if s.animal:
        s.say("Once upon a time, there were two friends, {a:kind} named {name} and {a:friend_kind} named {friend}.",
              "{name} the {kind} and {friend} the {friend_kind} were best friends.",
              "Once upon a time, {name} the {kind} and {friend} the {friend_kind} lived in the same [forest|meadow].")
    else:
        s.say("Once upon a time, there were two friends named {name} and {friend}.",
              "{name} and {friend} were best friends.", "{name} and {friend} lived on the same street.",
              "Once upon a time, {name} and {friend} were [good|best] friends.",
              "{name} and {friend} were friends who did everything together.")
    s.maybe(0.6, "They [liked|loved] to play together [every day|all day long|after breakfast].",
            "They loved to laugh and play.", "They were never bored when they were together.",
            "Every day, they met {in_place} and played until the sun went down.")


def ending(s, *morals):
    """The plot's lesson, then a last sentence."""
    name = s.facts["name"] + " "
    before = s.parts[-1]
    s.say(*morals)
    if before.startswith(name) and s.parts[-1].startswith(name) and "\"" not in before:
        s.parts[-1] = s.expand("{He} ") + s.parts[-1][len(name):].replace(name, s.facts["he"] + " ")
    s.maybe(0.6, *(PAIR_ENDINGS if s.pair else MORALS_END))


# --------------------------------------------------------------------------------------------------------- plots

def lost_thing(s):
    cast(s, animal_share=0.1)
    thing(s, LOSABLE)
    place(s)
    s.facts["look1"], s.facts["look2"] = s.rng.sample(INDOOR, 2)
    s.facts["found"] = s.pick(FUNNY_FINDS)
    opening(s, "{He} had {a:thing} that {he} loved very much.",
            "{name}'s favorite thing in the whole world was {a:thing}.",
            "{He} had {a:thing}, and {he} took it everywhere.",
            "{His} {mom_word} had given {him} {a:thing}, and {he} loved it.", hobby=0.2)
    s.say("{day}, {name} wanted to play, but the {noun} was gone.", "{day}, {he} could not find the {noun}.",
          "{day}, {name} woke up and saw that the {noun} was missing.",
          "{day}, {name} looked for the {noun}, but it was not in its place.")
    s.say("{He} looked {look1}, but it was not there. {He} looked {look2}, but {he} only found {found}.",
          "First {he} looked {look1}. Then {he} looked {look2}. All {he} found was {found}.",
          "{name} searched {look1} and {look2}, but {he} could not see it anywhere.")
    s.say("{name} felt very sad and [began to cry|sat down on the floor|did not know what to do].",
          "\"Oh no, where is my {noun}?\" {he} [said|cried].", "A big tear rolled down {his} cheek.")
    s.say("{Mom} came into the room and asked, \"What is wrong, {name}?\" \"I lost my {noun},\" {he} said.",
          "{Mom} saw that {name} was sad. \"What happened?\" {mhe} asked. \"My {noun} is gone,\" said {name}.",
          "\"{elder}, I cannot find my {noun},\" {he} said.")
    s.say("\"Do not worry,\" said {mom}. \"Where did you play with it yesterday?\"",
          "{mom} gave {him} a hug. \"Think carefully,\" {mhe} said. \"Where did you go yesterday?\"",
          "\"Let us think,\" said {mom}. \"Where did you see it last?\"")
    s.say("{name} thought for a moment. \"I was {in_place}!\" {he} said.",
          "{name} closed {his} eyes and thought hard. \"I remember! I was {in_place}!\"",
          "\"I took it {to_place},\" said {name}.")
    s.say("They walked {to_place} together. There, {spot}, was the {thing}!",
          "They went {to_place} and looked everywhere. {spot}, they saw something. It was the {thing}!",
          "So they hurried {to_place}. The {noun} was lying {spot}, just where {name} had left it.")
    s.say("{name} hugged the {noun} and [jumped for joy|laughed|danced around]. \"Thank you for helping me, {elder}!\" {he} said.",
          "\"Thank you, {elder}!\" {he} said, and {he} held the {noun} tight.",
          "{name} was so happy that {he} gave {mom} a big kiss.")
    ending(s, "From that day on, {name} always put the {noun} back in its place.",
           "After that, {he} took good care of the {noun}.",
           "{name} learned that it is good to ask for help.",
           "{name} learned to stay calm and think when something is lost.")


def sharing(s):
    cast(s, animal_share=0.15)
    thing(s, SHAREABLE)
    place(s, PLAY_PLACES)
    opening(s, "{day}, {mom} gave {him} {a:thing}.", "For {his} birthday, {he} got {a:thing}.",
            "{He} was very proud of {his} new toy, {a:thing}.", "{day}, {he} got {a:thing} as a present.", hobby=0.3)
    s.say("{He} [took|brought] it {to_place} to play.", "{name} went {to_place} to try it out.",
          "{He} wanted to play with it {in_place} right away.")
    s.say("{a:friend_kind} named {friend} came by. \"What a nice {noun}!\" said {friend}. \"May I try it?\"",
          "{in_place}, {he} met {a:friend_kind} named {friend}. \"Can I play with your {noun} too?\" asked {friend}.",
          "Soon {a:friend_kind} named {friend} came over and looked at the {noun}. \"Can I have a turn, please?\" asked {friend}.")
    s.say("\"No, it is mine!\" said {name}. {friend} looked sad and walked away.",
          "{name} shook {his} head. \"No, this is my {noun},\" {he} said. {friend} went away with a sad face.",
          "\"No,\" said {name}. \"I want to play alone.\" {friend} sat down under a tree and was very quiet.")
    s.say("{name} played alone for a while, but it was not much fun.",
          "{name} went on playing, but soon {he} felt lonely.",
          "After a while, {name} got bored. Playing alone was not as fun as {he} had thought.")
    s.say("{He} saw {friend} sitting all alone, and {he} felt sorry.", "{He} looked at {friend} and felt bad inside.",
          "{He} remembered what {mom} always said: \"Sharing makes every game better.\"",
          "Then {he} thought, \"I would be sad too if no one shared with me.\"")
    s.say("{name} went over to {friend}. \"I am sorry,\" {he} said. \"Let us play with the {noun} together.\"",
          "So {he} walked up to {friend} and said, \"I am sorry I was not nice. Do you want a turn?\"",
          "\"{friend}, would you like to play with me?\" asked {name}. \"We can take turns.\"")
    s.say("{friend} smiled a big smile. \"Yes, thank you!\" {fhe} said.",
          "{friend} jumped up. \"I would love to!\" {fhe} said.",
          "{friend}'s eyes lit up, and {fhe} said, \"Thank you, {name}!\"")
    s.say("They took turns and laughed [all afternoon|until it was time to go home|until the sun went down].",
          "The two of them played all afternoon and had so much fun.",
          "They played together, and it was much more fun than playing alone.")
    ending(s, "From that day on, {name} and {friend} were best friends.",
           "{name} learned that sharing [is fun|makes everyone happy|brings new friends].",
           "{name} was glad, because now {he} had {a:noun} and a friend.",
           "{name} knew that a toy is more fun when it is shared.")


SKILLS = [  # to learn, attempt, failure, tip, success
    ("ride a bike", "got on the bike and pushed the pedals", "the bike wobbled and {he} fell on the grass",
     "Look straight ahead and keep your feet moving", "{he} rode all the way down the path without falling"),
    ("swim", "jumped into the shallow water and kicked", "water got into {his} nose and {he} had to stop",
     "Lie on the water and kick slowly", "{he} swam from one side to the other"),
    ("whistle", "put {his} lips together and blew", "only air came out",
     "Make your lips round and blow very softly", "a clear, bright sound came out"),
    ("skate", "stepped onto the smooth ice", "{his} feet slid away and {he} sat down with a bump",
     "Bend your knees and take small steps", "{he} glided across the ice like a bird"),
    ("jump rope", "swung the rope over {his} head", "the rope got caught on {his} feet",
     "Listen to the sound of the rope and jump when it taps the ground", "{he} jumped ten times in a row"),
    ("climb the old apple tree", "grabbed the lowest branch and pulled", "{he} slipped and landed in the leaves",
     "Use your legs, and hold on with both hands", "{he} sat on a high branch and could see far away"),
    ("play the flute", "took a deep breath and blew into the flute", "it made a terrible squeak",
     "Blow gently and play one note at a time", "a sweet little song filled the air"),
    ("bake bread", "mixed the flour and the water", "the bread came out as hard as a stone",
     "Let the dough rest and be patient", "the bread was soft and golden"),
    ("paint a horse", "dipped the brush in the brown paint", "the horse looked like a big potato",
     "Look at the shape first and paint slowly", "the horse looked as if it could run off the paper"),
    ("catch a ball", "held out both hands", "the ball bounced off {his} fingers and rolled away",
     "Keep your eyes on the ball all the time", "{he} caught the ball five times in a row"),
    ("dance", "turned around on {his} toes", "{he} got dizzy and fell over",
     "Listen to the music and count to four", "{he} danced across the room without one wrong step"),
    ("fly a kite", "ran as fast as {he} could", "the kite dropped to the ground like a stone",
     "Wait for the wind, and then let the string go slowly", "the kite rose high into the blue sky"),
]


def learning(s):
    cast(s, animal_share=0.0)
    (s.facts["skill"], s.facts["attempt"], s.facts["failure"], s.facts["tip"], s.facts["success"]) = s.pick(SKILLS)
    s.facts["helper"] = s.pick(["{mom}", "{friend}"])
    s.uses_friend = s.facts["helper"] == "{friend}"
    s.facts["hhe"] = "{fhe}" if s.uses_friend else "{mhe}"
    if s.facts["skill"] == "skate":
        s.facts["day"] = "One cold winter day"
    opening(s, "{He} wanted to learn to {skill}.", "{He} had one big wish: {he} wanted to {skill}.",
            "All {his} friends could {skill}, but {name} could not.", "{His} dream was to {skill}.", hobby=0.3)
    s.say("{day}, {he} decided to try. {He} {attempt}, but {failure}.",
          "{day}, {name} tried for the first time. {He} {attempt}, but {failure}.",
          "{day}, {name} said, \"Today I will do it!\" {He} {attempt}, but {failure}.")
    s.say("{He} tried again and again, but it did not work.", "{He} tried once more, but it was no better.",
          "{name} tried three more times, but it was too hard.")
    s.say("\"I will never learn to {skill},\" {he} said [sadly|with a sigh].",
          "{name} was so upset that {he} wanted to give up.",
          "\"This is too hard for me,\" {he} said, and {he} kicked a small stone.",
          "{name} felt like crying.")
    if s.uses_friend:
        s.say("{His} friend {friend} had seen everything. \"Do not give up,\" said {friend}. \"{tip}.\"",
              "Just then, {his} friend {friend} came by. \"I can help you,\" {fhe} said. \"{tip}.\"",
              "{His} friend {friend} sat down next to {him}. \"It was hard for me too,\" said {friend}. \"{tip}.\"")
    else:
        s.say("{Mom} came and sat down next to {him}. \"Do not give up,\" {mhe} said. \"{tip}.\"",
              "{Mom} smiled at {him}. \"Everyone falls at first,\" {mhe} said. \"{tip}.\"",
              "\"I will show you a trick,\" said {mom}. \"{tip}.\"")
    s.say("{name} nodded and took a deep breath. {He} practiced [every day|all week|every afternoon].",
          "{name} listened carefully. {He} practiced a little every day, and {he} got better and better.",
          "So {name} tried again, and this time it was a little better. {He} kept on practicing.")
    s.say("Then, one [sunny morning|afternoon|day], it happened: {success}!",
          "[At the end of the week|A few days later|At last], {success}.",
          "And one day, {success}!")
    s.say("\"I did it! I did it!\" {he} [shouted|cried] with joy.", "\"Look at me!\" {he} called. \"I can {skill}!\"",
          "{name} could hardly believe it. \"I can {skill}!\" {he} cried.")
    s.say("{Helper} clapped and said, \"I [knew you could do it|am so proud of you]!\"",
          "{Helper} cheered and gave {him} a big hug.")
    ending(s, "{name} learned that practice makes hard things easy.",
           "{name} was proud, because {he} had not given up.",
           "From then on, when something was hard, {name} said, \"I just need to try again.\"",
           "And {name} never forgot that every new thing takes time.")


FEARS = [  # afraid of, event, remedy (speech), deed, result
    ("the dark", "the lights went out and the whole house was dark",
     "The dark is only the day taking a nap. Come, let us look for the stars",
     "They went to the window together and counted the stars", "The night was quiet and beautiful"),
    ("thunder", "dark clouds came, and there was a loud boom",
     "Thunder is only the clouds playing the drums. Let us sing along",
     "They sang a song together, and at every boom they laughed", "The storm did not sound so scary anymore"),
    ("the big slide", "everyone wanted to go down the big slide",
     "You can sit in front of me, and I will hold you",
     "They climbed up step by step and went down together", "The wind blew in {his} hair, and it felt like flying"),
    ("deep water", "everyone ran into the lake to play",
     "We can start with our toes. We will go only as far as you like",
     "First they got their toes wet, then their knees, and then they splashed each other",
     "The water was cool and lovely"),
    ("dogs", "a big brown dog came up the path",
     "This dog is gentle. Hold out your hand and let it sniff you",
     "{name} held out {his} hand slowly, and the dog licked it", "Its nose was wet and its tail was wagging"),
    ("singing in front of people", "it was time for the school show",
     "Look only at me, and pretend that we are at home",
     "{name} looked at the smiling face in the front row and began to sing",
     "Everyone listened, and then they all clapped"),
    ("high places", "everyone climbed to the top of the old tower",
     "Hold my hand and do not look down until we are at the top",
     "They went up slowly, one step after another", "From the top, they could see the river, the fields and the sea"),
    ("spiders", "a little spider came down from the ceiling on its thread",
     "The spider is much smaller than you. Look how pretty its web is",
     "They looked at the web together, and it was shining in the sun",
     "The spider was busy and did not want to hurt anyone"),
    ("the old cellar", "{mom} needed a jar of jam from the cellar",
     "We will take a lantern, and I will go first",
     "They went down the stairs with the lantern, one step at a time",
     "There were only jars of jam and one sleepy mouse"),
]


def fear(s):
    cast(s, animal_share=0.0)
    (s.facts["scary"], s.facts["event"], s.facts["remedy"], s.facts["deed"], s.facts["result"]) = s.pick(FEARS)
    s.facts["day"] = {"the dark": "One evening", "singing in front of people": "One Friday"}.get(
        s.facts["scary"], s.facts["day"])
    opening(s, "{He} was not afraid of many things, but {he} was afraid of {scary}.",
            "There was only one thing {he} did not like: {he} was afraid of {scary}.",
            "{name} had a secret: {he} was afraid of {scary}.", hobby=0.6)
    s.say("{day}, {event}.", "{day}, {name} was with {mom} when {event}.")
    s.say("{name} [began to shake|felt {his} heart beat fast|wanted to run away]. \"I am scared,\" {he} [whispered|said].",
          "\"I cannot do this,\" said {name} in a small voice, and {he} hid behind {mom}.",
          "{name} stood very still. {His} knees were shaking, and {he} did not say a word.")
    s.say("{Mom} took {his} hand. \"Everyone is afraid of something,\" {mhe} said.",
          "{Mom} did not laugh. \"It is all right to be scared,\" {mhe} said.",
          "{Mom} put an arm around {him}. \"I was afraid of {scary} too when I was little,\" {mhe} said.")
    s.say("\"{remedy}.\"")
    s.say("{name} thought about it and nodded slowly.",
          "{name} took a deep breath. \"All right, I will try,\" {he} said.",
          "\"Will you stay with me?\" asked {name}. \"Of course I will,\" said {mom}.")
    s.say("{deed}. {result}.")
    s.say("{name} was surprised. \"That was not so bad!\" {he} said.",
          "{name} began to smile. \"I am not scared now,\" {he} said.",
          "Little by little, {name} stopped shaking. Soon {he} was laughing.")
    s.say("\"You were very brave,\" said {mom}. \"Being brave means doing something even when you are scared.\"",
          "{Mom} hugged {him} and said, \"I am proud of you, {name}.\"",
          "\"Can we do it again?\" asked {name}, and {mom} laughed.")
    ending(s, "After that day, {name} was never so afraid of {scary} again.",
           "{name} learned that scary things are smaller when someone holds your hand.",
           "From that day on, {name} knew that {he} could be brave.",
           "The next time, {name} was the one who helped a friend to be brave.")


def lost_animal(s):
    cast(s, animal_share=0.2)
    place(s)
    s.facts["pet"] = s.pick([p for p in LOST_ANIMALS if p != s.facts["kind"]])
    s.facts["petadj"] = s.pick(["tiny", "small", "little", "gray", "white", "brown"])
    opening(s)
    s.say("{day}, {he} went {to_place}. There {he} heard a soft [cry|sound|little voice].",
          "{day}, {name} was walking {in_place} when {he} heard a strange little sound.",
          "{day}, {name} was playing {in_place}. Suddenly, {he} heard someone crying.")
    s.say("{He} looked around and saw {a:petadj} {pet} {spot}.",
          "{He} followed the sound and found {a:petadj} {pet} {spot}.",
          "{spot}, {he} saw {a:petadj} {pet}. It was all alone.")
    s.say("The {pet} was [cold and hungry|shaking with cold|wet and scared].",
          "The {pet} looked very [sad|scared|tired].",
          "The {pet} had a hurt leg and could not walk.")
    hurt = "hurt leg" in s.parts[-1]
    s.say("\"Do not be afraid,\" said {name} [softly|gently]. \"I will help you.\"",
          "\"Hello, little one,\" said {name}. \"Where is your mother?\" The {pet} only gave a sad cry.",
          "\"Poor little thing,\" {he} said. \"Are you lost?\"")
    s.say("{name} picked it up carefully and [wrapped it in {his} scarf|held it close|carried it home].") \
        if not s.animal else s.say("{name} [sat down next to it|stayed close to it] to keep it warm.")
    if hurt:
        s.say("{Mom} looked at the leg and put a small bandage on it.",
              "{Mom} helped {him} to clean the leg and tie a soft cloth around it.")
        s.say("Every day, {name} brought the {pet} food and water. Every day, it got a little stronger.",
              "For a whole week, {name} took care of the {pet}, and soon it could walk again.")
        s.say("At last the {pet} was well. {name} took it back {to_place}, and there its mother was waiting.",
              "When the {pet} was strong again, {name} brought it back {to_place}. Its mother was so happy to see it!")
    else:
        s.say("{He} gave it something to eat, and the {pet} felt better.",
              "{Mom} came and brought some food, and the {pet} ate it all.")
        s.say("Then {name} and {mom} looked for its mother. They looked behind every bush and under every tree.",
              "\"We must find its family,\" said {mom}. So they looked everywhere {in_place}.")
        s.say("At last, they heard a call. It was the mother! The {pet} hurried to her as fast as it could.",
              "Soon they saw a worried mother looking for her baby. The {pet} jumped for joy and hurried to her.")
    s.say("{name} was a little sad to say goodbye, but {he} was also very glad.",
          "{name} waved and said, \"Goodbye, little friend!\"",
          "The mother looked at {name} as if she wanted to say thank you.")
    s.maybe(0.5, "Sometimes, when {name} goes {to_place}, the {pet} comes to say hello.",
            "The {pet} looked back one more time before it went home.")
    ending(s, "{name} learned that even a small act of kindness can mean a lot.",
           "{name} felt warm inside, because {he} had helped someone small.",
           "From that day on, {name} always listened for those who needed help.",
           "{Mom} was very proud of {him}.")


BUILDS = [  # thing, with, mishap, fix, joy
    ("a treehouse", "old boards and nails", "the ladder broke", "tied the ladder together with a strong rope",
     "sat high up in the leaves and ate {food}"),
    ("a sandcastle", "buckets and wet sand", "a big wave washed half of it away",
     "moved it farther from the water and made it even bigger", "put a little flag on the highest tower"),
    ("a birdhouse", "wood and a little glue", "the roof was crooked and fell off",
     "measured the roof again and fixed it with four small nails", "watched a blue bird move in"),
    ("a boat", "a big wooden box and a bed sheet", "water came in through a hole",
     "closed the hole with wax and cloth", "sailed across the pond like real sailors"),
    ("a snowman", "fresh snow", "the head rolled off and broke", "made a new head and pressed it down firmly",
     "gave the snowman a carrot nose and a blue hat"),
    ("a kite", "paper, sticks and string", "the paper tore in the middle", "put a bright patch over the hole",
     "watched it dance high above the trees"),
    ("a fort", "pillows and blankets", "the whole roof came down on their heads",
     "put a broom in the middle to hold up the roof", "told stories inside with a small lamp"),
    ("a robot", "boxes and bottle caps", "one of the arms fell off", "joined the arm again with a long string",
     "taught it to wave at everyone"),
    ("a raft", "logs and rope", "the logs drifted apart", "tied every knot twice",
     "floated slowly down the stream and waved at the ducks"),
    ("a big cake", "flour, eggs and honey", "the cake fell on one side",
     "filled the low side with sweet cream and berries",
     "ate big slices until they were full"),
    ("a scarecrow", "straw and an old coat", "the wind blew its head off", "tied the head on with a red scarf",
     "laughed when the crows flew away"),
    ("a bridge over the stream", "flat stones and planks", "a plank slipped and splashed into the water",
     "put a heavy stone on each end", "walked across it without getting wet"),
]


def building(s):
    cast(s, animal_share=0.2)
    place(s)
    s.facts["food"] = s.pick(FOODS)
    (s.facts["work"], s.facts["parts"], s.facts["mishap"], s.facts["fix"], s.facts["joy"]) = s.pick(BUILDS)
    s.facts["short"] = s.facts["work"].split(" ", 1)[1].replace("big cake", "cake").split(" over")[0]
    if "snowman" in s.facts["work"]:
        s.facts["day"] = "One cold winter morning"
    pair_opening(s)
    s.say("{day}, {name} had an idea. \"Let us make {work}!\" {he} said.",
          "{day}, {friend} said, \"I want to make {work}. Will you help me?\" \"Of course!\" said {name}.",
          "{day}, they wanted to do something new. \"We could make {work},\" said {name}.")
    s.say("They found {parts} and started to work.", "They gathered {parts} and began right away.",
          "All they had was {parts}, but that was enough.")
    s.say("{name} did the big parts, and {friend} did the small parts.",
          "They worked hard all [morning|day|afternoon].",
          "{friend} held everything still while {name} worked.", "They worked and hummed a happy tune.")
    s.say("Everything went well until {mishap}.", "But then {mishap}!", "They were almost done when {mishap}.",
          "Just when they thought they were done, {mishap}.")
    s.say("\"Oh no!\" cried {friend}. \"All our work is ruined!\"",
          "{name} was angry and wanted to stop. \"It will never work,\" {he} said.",
          "They looked at each other, and {friend} almost began to cry.")
    s.say("\"Wait,\" said {name}. \"We can fix it if we work together.\"",
          "\"Let us not give up,\" said {friend}. \"I have a plan.\"",
          "Then {friend} had an idea and whispered it to {name}.") if "angry" not in s.parts[-1] else \
        s.say("\"Let us not give up,\" said {friend}. \"I have a plan.\"",
              "{friend} put a hand on {his} shoulder. \"We can try again,\" said {friend}.")
    s.say("Together they {fix}.", "They took a deep breath, and then they {fix}.", "Side by side, they {fix}.")
    s.say("This time it [worked|held]! The {short} was even better than before.", "Now the {short} was perfect.",
          "When they were done, it was the best {short} they had ever seen.")
    s.say("The two friends {joy}.", "They cheered, and then they {joy}.", "Full of joy, they {joy}.")
    s.maybe(0.5, "\"We make a great team,\" said {name}.", "\"I am glad you did not give up,\" said {friend}.",
            "{mom} came to see it and said, \"Well done, you two!\"")
    ending(s, "They learned that a mistake is only a chance to try again.",
           "{name} and {friend} knew that two heads are better than one.",
           "And they were already thinking about what to make next.",
           "They were proud, because they had made it with their own hands." if not s.animal else
           "They were proud, because they had made it all by themselves.")


def broken_thing(s):
    cast(s, animal_share=0.0)
    s.facts["vase"] = s.pick(["blue vase", "glass lamp", "old clock", "flower pot", "big mirror", "white teapot",
                              "favorite cup", "painted plate"])
    s.facts["item"] = s.facts["vase"].split()[-1]
    s.facts["owner"] = s.expand("{mom}'s")
    s.facts["item_full"] = s.facts["vase"]
    opening(s, hobby=0.8)
    s.say("{day}, {name} was playing with a ball in the house.", "{day}, {he} was running around in the living room.",
          "{day}, it was raining, so {name} played inside.", "{day}, {name} was jumping on the sofa.")
    s.say("{He} knew that it was not allowed, but it was so much fun.",
          "{Mom} had said, \"Be careful, please,\" but {name} forgot.",
          "{He} was having so much fun that {he} did not look where {he} was going.")
    s.say("Crash! {owner} {item_full} fell down and broke.",
          "Suddenly, there was a loud crash. {owner} {item_full} lay on the floor in pieces.",
          "{He} bumped into the table, and {owner} {item_full} fell to the floor and broke.")
    s.say("{name} felt {his} face get hot. \"What should I do?\" {he} thought.",
          "{name} was very scared. {He} did not want {mom} to be angry.",
          "{name} stood still and looked at the pieces. {His} heart beat fast.")
    s.say("First {he} wanted to hide the pieces under the rug.", "{He} thought, \"I could say that the cat did it.\"",
          "For a moment, {he} wanted to run away and hide.")
    s.say("But {he} knew that it would not be right.", "But that did not feel right.",
          "But then {he} thought about how {mom} always told {him} the truth.")
    s.say("So {he} went to {mom} and said, \"I broke your {item}. I am very sorry.\"",
          "{name} walked slowly to {mom}. \"I did something bad,\" {he} said. \"I broke your {item}. I am sorry.\"",
          "{He} took a deep breath and told {mom} everything. \"I am so sorry about your {item},\" {he} said.")
    s.say("{Mom} was quiet for a moment. Then {mhe} gave {him} a hug.",
          "{Mom} looked at the pieces, and then {mhe} knelt down next to {him}.")
    s.say("\"I am sad about the {item},\" {mhe} said, \"but I am happy that you told me the truth.\"",
          "\"Thank you for telling me,\" {mhe} said. \"That was very brave.\"",
          "\"Things can break,\" {mhe} said, \"but the truth is worth more than any {item}.\"")
    s.say("Together they [picked up the pieces|swept the floor|cleaned up the room].",
          "They glued the pieces together, and the {item} looked almost new.")
    s.maybe(0.5, "Then they went outside to play, where there was nothing to break.",
            "\"Next time, I will play outside,\" said {name}.", "After that, they had some {treat} together.")
    ending(s, "{name} learned that it is always best to tell the truth.",
           "{name} felt much better, because the truth made {his} heart light.",
           "From that day on, {name} was more careful, and {he} always told the truth.")


def stuck_in_tree(s):
    cast(s, animal_share=0.0)
    place(s)
    noun = s.pick(["kite", "ball", "hat", "balloon", "paper plane", "kitten"])
    s.facts["noun"] = noun
    s.facts["thing"] = s.pick(["gray", "white", "black", "tiny"] if noun == "kitten" else COLORS) + " " + noun
    s.facts["it"] = "it"
    if noun == "kitten":
        opening(s, "{He} had {a:thing} that liked to climb.", "{He} had {a:thing}, and they played together every day.",
                hobby=0.3)
        s.say("{day}, the {noun} ran up a tall tree and could not come down.",
              "{day}, a dog barked, and the {noun} climbed to the top of a tall tree.")
        s.say("\"Come down!\" called {name}, but the {noun} was too scared.",
              "The {noun} sat on a high branch and cried.")
    else:
        opening(s, "{He} had {a:thing} that {he} liked very much.",
                "{His} favorite toy was {a:thing}." if noun != "hat" else
                "{He} always wore {a:thing}.", "{day_before} {he} got {a:thing} from {mom}.", hobby=0.3)
        s.say("{day}, {name} went {to_place}. A strong wind came and carried the {noun} into a tall tree.",
              "{day}, {he} was playing {in_place} when the wind took the {noun}. It got stuck at the top of a tree.",
              "{day}, {he} was playing with the {noun} {in_place}. It flew up, up, up and got stuck in a tall tree.")
        s.say("\"Oh no, my {noun}!\" cried {name}.", "{name} looked up and felt very sad.",
              "\"Come back!\" called {name}, but the {noun} did not move.")
    s.say("{name} jumped as high as {he} could, but {he} could not reach it.",
          "{name} tried to climb the tree, but the trunk was too smooth.",
          "{name} stood on {his} toes and reached up, but the branch was much too high.")
    s.say("{He} tried with a long stick, but the stick was too short.",
          "{He} shook the tree, but only leaves came down.",
          "{He} stood on a big stone, but that did not help.")
    s.facts["helper"] = s.pick(["a tall farmer", "a firefighter", "a gardener", "a kind neighbor", "an old man",
                                "a tall woman"])
    s.facts["helper_the"] = "the " + s.facts["helper"].split(" ", 1)[1]
    s.say("Just then, {helper} came by and asked, \"Do you need help?\"",
          "{helper} saw {him} and stopped. \"What is the matter?\" asked {helper_the}.",
          "Then {helper} walked up to the tree. \"Can I help you?\" asked {helper_the}.")
    s.say("\"Yes, please,\" said {name}. \"My {noun} is up there, and I cannot reach it.\"" if "elp" in s.parts[-1] else
          "\"My {noun} is up there, and I cannot reach it,\" said {name}.",
          "\"My {noun} is stuck in the tree,\" said {name} and pointed up.")
    s.say("{helper_the} brought a long ladder and climbed up, step by step.",
          "{helper_the} put a ladder against the tree and went up slowly.",
          "\"That is easy,\" said {helper_the} and fetched a ladder.")
    s.say("Soon the {noun} was safe in {name}'s arms.", "After a minute, {helper_the} came down with the {thing}.",
          "{helper_the} took the {noun} from the branch and gave it to {name}.")
    s.say("\"Thank you so much!\" said {name} with a big smile.",
          "{name} laughed with joy. \"You are so kind!\" {he} said.")
    s.say("The next day, {name} brought {helper_the} a basket of {food} to say thank you.",
          "{name} wanted to give something back, so {he} shared {his} {food} with {helper_the}.",
          "\"You are welcome,\" said {helper_the}. \"It is nice to help each other.\"")
    ending(s, "From that day on, they were good friends.", "{name} learned that it is all right to ask for help.",
           "{name} knew that one day {he} would help someone too.")


PLANTS = [("sunflower", "it was taller than {name}", "The birds came to eat the seeds"),
          ("pumpkin", "there was a pumpkin as big as a chair", "They made soup for the whole street"),
          ("tomato plant", "it was full of round red tomatoes", "They made a big salad and ate it in the sun"),
          ("rose", "it had a beautiful red flower", "The whole garden smelled sweet"),
          ("bean plant", "it had climbed all the way to the window", "There were enough beans for everyone"),
          ("strawberry plant", "it was full of sweet red strawberries", "They ate them with cream")]


def garden(s):
    cast(s, animal_share=0.2, elders=("grandma", "grandpa", "mom", "dad"))
    (s.facts["plant"], s.facts["grown"], s.facts["harvest"]) = s.pick(PLANTS)
    opening(s)
    s.say("{day}, {mom} gave {him} a tiny seed. \"If you take care of it, it will become {a:plant},\" {mhe} said.",
          "{day}, {he} found a small seed. \"What is this?\" {he} asked. \"It will be {a:plant} one day,\" said {mom}.",
          "{day}, {name} said, \"I want to grow {a:plant}!\" So {mom} gave {him} a seed.")
    s.say("{name} made a little hole in the soil, put the seed in and gave it water.",
          "They went to the garden. {name} put the seed into the soft earth and covered it gently.")
    s.say("Then {he} sat down and waited, but nothing happened.",
          "The next morning, {he} ran outside to look, but there was nothing to see.",
          "{He} waited for a whole day, but nothing came out of the ground.")
    s.say("\"Why does it not grow?\" {he} asked. \"Be patient,\" said {mom}. \"Good things take time.\"",
          "\"It is broken!\" said {name}. {Mom} laughed. \"No, it is only sleeping,\" {mhe} said. \"Give it time.\"",
          "{name} wanted to dig it up. \"No, no,\" said {mom}. \"A seed needs water, sun and time.\"")
    s.say("So {name} gave it water every morning.", "Every day, {name} brought water and talked to the seed.",
          "{name} watered it each day and pulled out the weeds.")
    s.say("It rained, and the sun shone, and the days went by.", "A week went by, and then another.",
          "Some days were sunny, and some days were rainy.")
    s.say("Then, one morning, {he} saw a tiny green leaf. \"It is growing!\" {he} shouted.",
          "One day, a little green shoot came out of the ground. {name} danced with joy.")
    s.say("The plant grew and grew. At the end of the summer, {grown}.",
          "Week after week, it grew bigger, until {grown}.")
    s.say("\"Look what I did!\" said {name}. \"You were very patient,\" said {mom}.",
          "{Mom} smiled. \"You took good care of it,\" {mhe} said.",
          "{name} was so proud that {he} showed it to everyone.")
    s.say("{harvest}.")
    ending(s, "{name} learned that good things need time.", "{name} kept one seed for the next year.",
           "And every spring after that, {name} planted a new seed.",
           "From that day on, {name} loved the garden even more.")


GIFTS = [("a picture", "took {his} best colors and painted {subject}",
          "It will hang on the wall where I can see it every day"),
         ("a necklace", "put colorful beads on a string, one after another", "I will wear it every day"),
         ("a cake", "mixed flour, eggs and sugar and baked it until it was golden",
          "It is the best cake I have ever tasted"),
         ("a card", "folded a piece of paper and drew {subject} on it", "I will keep it forever"),
         ("a scarf", "knitted for many hours with soft blue wool", "It is the warmest scarf in the world"),
         ("a song", "wrote a little song and practiced it in secret", "It is the loveliest song I have ever heard"),
         ("a basket of flowers", "picked yellow and white flowers in the meadow", "They smell so sweet"),
         ("a wooden box", "painted a small box with stars and moons", "I will put all my treasures in it")]


def gift(s):
    cast(s, animal_share=0.0)
    s.facts["subject"] = s.pick(["a bright sun", "a big heart", "a happy family", "a field of flowers", "a rainbow"])
    (s.facts["gift"], s.facts["make"], s.facts["praise"]) = s.pick(GIFTS)
    s.facts["short"] = s.facts["gift"].split(" ", 1)[1].split()[0] if "wooden" not in s.facts["gift"] else "box"
    opening(s)
    s.say("{Mom}'s birthday was coming, and {name} wanted to give {mhim} something special.",
          "It was almost {mom}'s birthday, but {name} did not have a present.",
          "{day}, {name} remembered that tomorrow was {mom}'s birthday.")
    s.say("{He} looked into {his} piggy bank, but there were only [two|three] coins.",
          "{He} had no money to buy anything.",
          "{He} went to the shop, but everything there cost too much.")
    s.say("\"What can I do?\" {he} thought.", "{name} felt sad and sat down on the steps.",
          "{name} sighed. \"I have nothing to give,\" {he} said.")
    s.say("{His} friend {friend} said, \"The best presents are the ones you make.\"",
          "{He} asked {his} friend {friend} for help. \"You can make something yourself,\" said {friend}.",
          "Then {his} friend {friend} came by. \"Why do you not make something?\" asked {friend}.")
    s.say("{name}'s eyes lit up. \"I will make {gift}!\" {he} said.",
          "\"That is a great idea!\" said {name}. \"I will make {gift}!\"")
    s.say("{name} {make}.", "{He} {make}.", "All afternoon, {name} worked. {He} {make}.")
    s.say("It was not perfect, but it was made with love.", "It took a long time, but {he} did not mind.",
          "{friend} helped a little, and soon it was done.")
    s.say("The next day, {name} said, \"Happy birthday, {elder}! I made this for you.\"",
          "On the day of the birthday, {name} came in with a big smile. \"This is for you, {elder},\" {he} said.")
    s.say("{Mom} was so surprised that {mhe} [had tears in {mhis} eyes|could not speak for a moment].",
          "{Mom} smiled from ear to ear.")
    s.say("\"Did you make this {short} all by yourself?\" {mhe} asked. \"{praise}.\"" if s.facts["gift"] != "a basket of flowers" else
          "\"Are these flowers for me?\" {mhe} asked. \"{praise}.\"", "\"{praise},\" {mhe} said.",
          "\"This is the best present of all,\" {mhe} said. \"{praise}.\"")
    s.say("{mom} gave {name} a long, warm hug.", "Then they all ate cake and sang together.",
          "{name} felt as warm as the sun.")
    ending(s, "{name} learned that the best gifts come from the heart.",
           "{name} knew that love is the best present of all.",
           "It was the happiest birthday {mom} had ever had.")


def new_friend(s):
    cast(s, animal_share=0.35)
    place(s)
    s.facts["game"] = s.pick(["hide and seek", "tag", "catch", "a game of pirates", "follow the leader",
                              "a guessing game"])
    opening(s)
    s.say("{day}, a new {friend_kind} came to live nearby. {His_f} name was {friend}.",
          "{day}, {name} saw {a:friend_kind} sitting all alone {in_place}.",
          "{day}, {he} went {to_place} and saw a new {friend_kind} there.")
    named = s.facts["friend"] in s.parts[-1]
    s.say("{The_new} looked [sad|shy|lonely] and did not talk to anyone.",
          "{The_new} looked at the ground and did not say a word.") if named else \
        s.say("The {friend_kind} looked [sad|shy|lonely] and did not talk to anyone.",
              "The {friend_kind} looked at the ground and was very quiet.")
    s.say("Some of the others said, \"Let us not play with someone we do not know.\"",
          "The others were playing, but nobody asked {fhim} to join.",
          "No one else seemed to notice.")
    s.say("{name} thought, \"It must be hard to be new here.\"", "{name} remembered how it felt to be alone.",
          "{name} did not like to see anyone so sad.")
    s.say("So {he} went over and said, \"Hello, my name is {name}. What is your name?\" \"I am {friend},\" {fhe} said quietly.") if not named else \
        s.say("So {he} went over and said, \"Hello, {friend}. I am {name}.\"",
              "{He} walked up to {friend} with a smile and said, \"Welcome! My name is {name}.\"")
    s.say("\"Do you want to play {game} with me?\" asked {name}.",
          "\"We are going to play {game},\" said {name}. \"Do you want to come?\"")
    s.say("{friend} looked up. \"I do not know how,\" {fhe} said. \"I will show you,\" said {name}.",
          "{friend} was surprised. \"With me?\" {fhe} asked. \"Yes, with you!\" said {name}.",
          "{friend} gave a small smile and nodded.")
    s.say("They played {game} and laughed a lot.", "Soon they were running and laughing together.",
          "{friend} was very good at it, and soon everyone wanted to join in.")
    s.say("When they were tired, {name} shared {his} {food} with {friend}.",
          "Afterwards, they sat under a tree and ate {food}.",
          "Then {friend} showed everyone a funny dance, and they all clapped.")
    s.say("\"Today I was afraid that I would have no friends,\" said {friend}. \"Now I have you.\"",
          "\"Thank you for talking to me,\" said {friend}. \"You are very kind.\"",
          "\"Can we play again tomorrow?\" asked {friend}. \"Of course!\" said {name}.")
    ending(s, "From that day on, {name} and {friend} were best friends.",
           "{name} learned that one kind word can start a friendship.",
           "And nobody there was ever left alone again.", "{name} was happy, because a stranger had become a friend.")


NOISES = [  # noise, where, source, deed
    ("tap, tap, tap", "the attic", "a small bird tapping on the window", "gave it some crumbs"),
    ("scratch, scratch", "the old kitchen", "a tiny mouse with a big piece of cheese", "let it keep the cheese"),
    ("squeak, squeak", "the garden", "the old gate moving in the wind", "closed it with a piece of string"),
    ("hoo, hoo", "the barn", "a young owl that could not sleep", "sang it a quiet song"),
    ("splash, splash", "the garden shed", "a green frog in a bucket of water", "put it back into the wet grass"),
    ("meow, meow", "the cellar", "a little kitten behind the boxes", "gave it a bowl of milk"),
    ("thump, thump", "the barn", "a fat rabbit hopping in the dark", "gave it a carrot"),
    ("buzz, buzz", "the attic", "a bee that could not find the way out", "opened the window for it"),
    ("drip, drop", "the old kitchen", "water dripping from a pipe", "put a bowl under it")]


def strange_noise(s):
    cast(s, animal_share=0.0)
    s.facts["noise"], s.facts["where"], s.facts["source"], s.facts["deed"] = s.pick(NOISES)
    opening(s)
    s.say("One night, {name} heard a strange noise. It came from {where}.",
          "One dark evening, {name} was in bed when {he} heard a noise from {where}.",
          "One night, {he} could not sleep. There was a strange sound in {where}.")
    s.say("\"{Noise},\" it went.", "It went {noise}, and then it was quiet again.", "\"{Noise}!\" What could it be?")
    s.say("\"Is it a monster?\" {he} thought, and {he} pulled the blanket over {his} head.",
          "{name} was a little scared. Maybe it was a ghost!",
          "{His} heart began to beat fast. \"Maybe it is a dragon,\" {he} whispered.")
    s.facts["sibling"] = s.facts["friend"]
    s.facts["relation"] = s.pick(["cousin", "brother" if s.facts["fhe"] == "he" else "sister"])
    s.say("{He} woke up {his} {relation} {sibling}. \"Did you hear that?\" {he} asked.",
          "{He} ran to {his} {relation} {sibling}. \"Listen!\" {he} said.")
    s.say("{sibling} listened. \"Yes, I hear it too,\" said {sibling}. \"Let us go and see.\"",
          "\"We should find out what it is,\" said {sibling}. \"We can go together.\"")
    s.say("They took a lamp and walked to {where} on their toes.",
          "Hand in hand, they went to {where} with a small lamp.",
          "{name} held the lamp, and {sibling} held {name}'s hand.")
    s.say("The noise got louder and louder: {noise}!", "With every step, the noise got louder.")
    s.say("Slowly, {name} opened the door and held up the lamp.", "{name} counted to three and pushed open the door.")
    s.say("It was not a monster at all. It was {source}!", "There, in the light, they saw {source}.",
          "And what did they see? It was only {source}!")
    s.say("They both began to laugh. \"And we were so scared!\" said {name}.",
          "\"So that was our monster!\" said {sibling}, and they laughed and laughed.")
    s.say("They {deed} and went back to bed.", "{name} and {sibling} {deed}. Then they tiptoed back to bed.")
    s.maybe(0.5, "In the morning, they told {mom} the whole story, and {mhe} laughed too.",
            "Soon the whole house was quiet again.")
    ending(s, "{name} learned that things are often less scary when you look at them closely.",
           "After that night, {name} was not afraid of strange noises anymore.",
           "{name} slept very well that night.")


def picnic_rain(s):
    cast(s, animal_share=0.3)
    place(s)
    s.facts["food2"] = s.pick([f for f in FOODS if f != s.facts["food"]])
    s.facts["shelter"] = s.pick(["an old barn", "a big hollow tree", "a dry cave", "a little wooden hut", "a red tent"])
    s.facts["shelter_the"] = "the " + s.facts["shelter"].split()[-1]
    pair_opening(s)
    s.say("{day}, they decided to have a picnic {in_place}.",
          "{day}, {name} said, \"Let us have a picnic {in_place}!\"",
          "{day}, they packed a basket and went {to_place} for a picnic.")
    s.say("They took {food}, {food2} and a big blanket.", "{name} brought {food}, and {friend} brought {food2}.",
          "In the basket there were {food} and {food2}.")
    s.say("The sky was blue, and the birds were singing.", "The sun was shining, and everything smelled of flowers.",
          "They found a nice spot and sat down.")
    s.say("But soon dark clouds covered the sun. Drip, drop, it began to rain!",
          "Suddenly, a cold wind came, and it started to rain.",
          "Then {friend} felt a drop on {fhis} nose. It was raining!")
    s.say("\"Our picnic is ruined,\" said {friend} sadly.", "\"Oh no! What do we do now?\" asked {friend}.",
          "\"Everything is getting wet!\" cried {friend}.")
    s.say("{name} looked around and saw {shelter}. \"Quick, follow me!\" {he} called.",
          "\"Look over there!\" said {name}. \"I can see {shelter}. Let us run!\"")
    s.say("They grabbed the basket and ran through the rain.", "They held the blanket over their heads and ran.",
          "Splash, splash, they ran through the puddles and laughed.")
    s.say("Inside {shelter_the}, it was dry and [cozy|warm].",
          "They sat down in {shelter_the} and listened to the rain.")
    s.say("They ate {food} and {food2} and told each other funny stories.",
          "{name} put the blanket on the floor. \"Now we have a picnic inside!\" {he} said.",
          "They played games and sang songs while the rain fell.")
    s.say("When the rain stopped, they went outside. There was a beautiful rainbow in the sky.",
          "After a while, the sun came back and made a big, bright rainbow.")
    s.say("\"Look at all the colors!\" said {friend}.", "\"Without the rain, we would not have seen it,\" said {name}.",
          "They looked at it for a long time and did not say a word.")
    ending(s, "They agreed that it was the best picnic of all.",
           "{name} and {friend} learned that a bad day can become a good one.",
           "From then on, they did not mind a little rain.")


def found_thing(s):
    cast(s, animal_share=0.1)
    place(s)
    s.facts["noun"] = s.pick(["ring", "purse", "watch", "key", "necklace", "coin", "silver cup"])
    s.facts["thing"] = {"silver cup": "silver cup"}.get(s.facts["noun"],
                                                        s.pick(["golden", "shiny", "old", "beautiful",
                                                                "small"]) + " " + s.facts["noun"])
    s.facts["noun"] = s.facts["noun"].split()[-1]
    s.facts["owner"], s.facts["ohe"], s.facts["ohis"] = s.pick([("an old woman", "she", "her"),
                                                                ("an old man", "he", "his"), ("the baker", "he", "his"),
                                           ("the teacher", "she", "her"), ("a young woman", "she", "her"),
                                                                ("the shoemaker", "he", "his")])
    s.facts["owner_the"] = "the " + s.facts["owner"].split(" ", 1)[1]
    opening(s)
    s.say("{day}, {he} was walking {in_place} when {he} saw something [shine|bright on the ground].",
          "{day}, {name} went {to_place}. Something was shining {spot}.")
    s.say("It was {a:thing}! {name} had never seen anything like it.",
          "{He} bent down and picked it up. It was {a:thing}!")
    s.say("\"How lucky I am!\" {he} thought. \"I could keep it.\"", "{He} wanted to keep it, because it was so pretty.",
          "\"Now it is mine,\" said {name}, and {he} put it into {his} pocket." if not s.animal else "\"Now it is mine,\" said {name}.")
    s.say("But then {he} thought about the one who had lost it.",
          "But on the way home, {he} began to think. \"Someone must be looking for it,\" {he} said.",
          "But {his} heart felt heavy. \"It belongs to someone else,\" {he} thought.")
    s.say("{name} asked everyone {he} met, \"Did you lose {a:noun}?\"",
          "So {name} went from door to door and asked who had lost {a:noun}.")
    s.say("\"No, I did not,\" said the first. \"Not me,\" said the second.",
          "Many shook their heads. Nobody had lost {a:noun}.",
          "At the first house, nobody knew anything. At the second house, nobody was home.")
    s.say("At last, {he} met {owner}. {ohe} was looking for something on the ground.",
          "Then {he} saw {owner} sitting on a bench. {ohe} looked very sad.")
    s.say("\"What are you looking for?\" asked {name}. \"I lost my {noun},\" said {owner_the}. \"My mother gave it to me.\"", "\"Did you lose something?\" asked {name}. \"Yes,\" said {owner_the}. \"I lost my {noun}, and it means so much to me.\"")
    s.say("\"Here it is!\" said {name}, and {he} held out the {noun}.",
          "{name} smiled and gave {owner_the} the {noun}.")
    s.say("{owner_the} was so happy that {ohe} [began to cry|laughed out loud|danced on the spot].",
          "{owner_the}'s eyes were full of happy tears.")
    s.say("\"Thank you, honest {kind},\" {ohe} said. \"You have made me very happy.\"",
          "\"You are a good {kind},\" {ohe} said. \"Thank you with all my heart.\"")
    s.say("{Ohe} gave {name} {treat}, and they talked like old friends.",
          "{Ohe} invited {name} for {treat}, and it tasted wonderful.")
    ending(s, "{name} learned that being honest feels better than keeping a treasure.",
           "{name} was happier than if {he} had kept the {noun}.", "On the way home, {name} sang a happy song.")


def helping(s):
    cast(s, animal_share=0.0)
    who = s.pick([("{his} grandma", "she", "her", "Grandma"), ("{his} grandpa", "he", "him", "Grandpa"),
                  ("{his} neighbor, Mrs. Brown,", "she", "her", "Mrs. Brown"),
                  ("{his} neighbor, Mr. Green,", "he", "him", "Mr. Green")])
    s.facts["old"], s.facts["ohe"], s.facts["ohim"], s.facts["oldcall"] = who
    s.facts["oldname"] = "{his} " + who[3].lower() if who[3] in ("Grandma", "Grandpa") else who[3]
    s.facts["task"], s.facts["taskpast"], s.facts["ready"] = s.pick([
        ("pick all the apples in the garden", "picked one apple after another and put them in a basket",
         "the basket was full"),
        ("carry the wood into the house", "carried the wood inside, piece by piece", "the fire was burning brightly"),
        ("paint the old fence", "painted one board after another", "the fence was as white as snow"),
        ("sweep the leaves in the yard", "swept the leaves into a big pile", "the yard was clean"),
        ("feed the chickens", "gave the chickens their corn and filled their bowl with water",
         "the chickens were full and happy"),
        ("wash the windows", "washed every window until it was shining", "the sun came into every room"),
        ("water all the flowers", "carried the heavy can from one flower to the next",
         "the flowers lifted their heads")])
    opening(s)
    s.say("{day}, {he} went to visit {old}, who was very tired.", "{day}, {old} needed help.") if who[3] in ("Grandma",
                                                                                                             "Grandpa") else \
        s.say("{day}, {he} saw that {old} was very tired.", "{day}, {old} needed help.")
    s.say("\"I have to {task},\" said {oldname}, \"but my back hurts.\"",
          "\"I must {task},\" {ohe} said with a sigh, \"but I am too old for that.\"")
    s.say("{name} had wanted to play with {his} friends, but {he} felt sorry for {ohim}.",
          "{name}'s friends were calling {him} to come and play.",
          "{name} looked at {his} ball, and then {he} looked at {oldname}.")
    s.say("\"I will help you,\" said {name}. \"You can sit down and rest.\"",
          "\"Do not worry,\" {he} said. \"I can do it for you!\"")
    s.say("{name} {taskpast}.", "{He} got to work. {He} {taskpast}.")
    s.say("It was hard work, and soon {he} was hot and tired.",
          "After an hour, {his} arms were tired, but {he} did not stop.", "The sun was hot, but {name} kept going.")
    s.say("Then {his} friend {friend} came to look for {him}. \"Why do you not come and play?\" asked {friend}.",
          "{His} friend {friend} came by and asked, \"What are you doing?\"")
    s.say("\"I am helping,\" said {name}. \"I will come when I am done.\" \"Then I will help too,\" said {friend}.",
          "\"{oldcall} needs help,\" said {name}. {friend} thought about it and said, \"I can help too!\"")
    s.say("Together they worked twice as fast, and soon {ready}.",
          "With two of them, it was easy and even fun. Soon {ready}.")
    s.say("{oldname} came out and clapped. \"How wonderful! Thank you, both of you,\" {ohe} said.",
          "\"You are the best helpers in the world,\" said {oldname}.")
    s.say("Then {ohe} gave them {treat}, and they all sat in the sun.",
          "{ohe} made them {treat} and told them stories about the old days.",
          "They had {treat} together, and it tasted better than ever.")
    ending(s, "{name} learned that helping others makes you happy too.",
           "{name} and {friend} came back the next week to help again.",
           "{name} was tired that evening, but {he} was also very happy.")


def race(s):
    cast(s, animal_share=0.6)
    place(s)
    s.facts["prize"] = s.pick(["a golden cup", "a basket of {food}", "a big blue ribbon", "a shiny medal"])
    s.facts["prize"] = s.expand(s.facts["prize"])
    s.facts["goal"] = s.pick(["the old bridge", "the tall oak tree", "the red barn", "the big rock"])
    s.facts["trouble"] = s.pick(["fell into a muddy ditch", "tripped over a root", "got stuck in a thorn bush",
                                 "stepped on a sharp stone"])
    opening(s, hobby=0.4)
    s.say("{He} was very fast, and {he} wanted to be the fastest of all.", "{name} could run like the wind.",
          "{name} was not the fastest runner, but {he} loved to run.")
    s.say("{day}, there was a big race. The first one to reach {goal} would win {prize}.",
          "{day}, everyone came together for a race to {goal}. The winner would get {prize}.")
    s.say("{name} stood at the start next to {a:friend_kind} named {friend}.",
          "Next to {him} stood {a:friend_kind} named {friend}, who was very fast too.")
    s.say("\"Good luck,\" said {friend}. \"Good luck to you too,\" said {name}.",
          "\"I am going to win,\" said {friend}. \"We will see,\" said {name} with a smile.")
    s.say("\"Ready, set, go!\" Everyone began to run.", "\"One, two, three, go!\" called {mom}, and off they went.")
    s.say("Soon {name} and {friend} were in front of all the others.",
          "{friend} was fast, but {name} was right behind.",
          "They ran up the hill and through the trees, side by side.")
    s.say("Suddenly, {friend} {trouble} and could not get up.",
          "Then there was a cry. {friend} {trouble} and was hurt.")
    s.say("{name} could see {goal}. {He} only had to keep running to win.",
          "Now {name} was the first, and {goal} was very close.")
    s.say("But {he} stopped and turned around. \"Are you all right?\" {he} asked.",
          "But {name} thought, \"A friend is more important than a prize.\" So {he} ran back.")
    s.say("\"My foot hurts,\" said {friend}. \"Lean on me,\" said {name}, and {he} helped {fhim} up.",
          "{He} helped {friend} to get up. \"We can finish together,\" said {name}.")
    s.say("Slowly, they walked to {goal}. They were the last ones, but everyone clapped for them.",
          "Step by step, they went on together. When they reached {goal}, everyone cheered.")
    s.say("The winner looked at them and said, \"The prize should be yours, because you were so kind.\"",
          "\"You did not win the race,\" said {mom}, \"but you won something better.\"",
          "\"Thank you, {name},\" said {friend}. \"You are a true friend.\"")
    ending(s, "{name} learned that being kind is better than being first.",
           "From that day on, {name} and {friend} always ran together.",
           "{name} was not sad at all, because {he} had a new friend.")


def journey(s):
    cast(s, animal_share=0.6)
    s.facts["goal"], s.facts["seen"], s.facts["say"] = s.pick([
        ("the sea", "There was water as far as they could see, and it sparkled in the sun",
         "It is bigger than the sky"),
        ("the top of the mountain", "The whole world lay below them, small and green", "I can touch the clouds"),
        ("the end of the river", "The little river became wide and ran into a silver lake",
         "So this is where the water goes"),
        ("the place where the sun goes down", "The sky turned red and gold behind the hills",
         "The sun goes to bed here"),
        ("the old lighthouse", "It was tall and white, and its light went round and round",
         "It looks like a star that lives on a rock"),
        ("the waterfall", "The water fell down like a white curtain, and there was a rainbow in it",
         "It sounds like a lion")])
    s.facts["obstacle"], s.facts["way"] = s.pick([
        ("a wide stream", "found a fallen log and walked across it, one after the other"),
        ("a dark tunnel", "held on to each other and sang until they saw the light"),
        ("a high wall", "helped each other to climb over it"),
        ("a thick fog", "followed the sound of a bell until the fog was gone"),
        ("a steep hill", "rested three times and cheered each other on")])
    s.facts["guide"] = s.pick(["an old turtle", "a friendly crow", "a gray goose", "a wise owl", "an old sheep"])
    s.facts["guide_the"] = "the " + s.facts["guide"].split()[-1]
    opening(s)
    s.say("{He} had heard about {goal}, but {he} had never seen it.", "{name} had always wanted to see {goal}.",
          "\"What is it like at {goal}?\" {he} often asked.")
    s.say("{day}, {he} said to {his} friend {friend}, \"Let us go and see {goal}!\"",
          "{day}, {he} packed some {food} and asked {his} friend {friend} to come along.")
    s.say("\"Is it far?\" asked {friend}. \"I think so,\" said {name}, \"but we can do it.\"",
          "{friend} liked the idea, and so they set off.")
    s.say("They walked through fields and forests.", "They walked and walked, and the path went up and down.",
          "They walked all morning and sang on the way.")
    s.say("Then they came to {obstacle}. \"We cannot go on,\" said {friend}.",
          "Soon there was {obstacle} in front of them. \"What now?\" asked {friend}.")
    s.say("\"Let us think,\" said {name}. They {way}.", "{name} had an idea. They {way}.")
    s.say("In the afternoon, they did not know which way to go. They asked {guide}.",
          "At a crossing, they met {guide} and asked for the way.")
    s.say("\"Follow the path with the white stones,\" said {guide_the}. \"It is not far now.\"",
          "\"Go past the three tall trees,\" said {guide_the}, \"and do not give up.\"")
    s.say("They thanked {guide_the}, shared their {food} and went on.",
          "\"Thank you!\" they said and walked a little faster.")
    s.say("And then, at last, they were there. {seen}.", "When they came around the last bend, they stopped. {seen}.")
    s.say("\"{say},\" said {name} softly.", "\"{say}!\" cried {friend}.")
    s.say("They sat down side by side and looked for a long time.", "They stayed there until the stars came out.")
    ending(s, "Then they walked home, tired and happy.", "{name} learned that a long way is short with a good friend.",
           "When they came home, they had a story to tell.",
           "\"Where will we go next?\" asked {friend}, and {name} smiled.")


def messy_room(s):
    cast(s, animal_share=0.0, elders=("mom", "dad"))
    thing(s, LOSABLE)
    s.facts["treasure"] = s.pick(["a lost coin", "{his} old drum", "a letter from {his} grandma", "{his} favorite book",
                                  "a box of crayons"])
    s.facts["treasure"] = s.expand(s.facts["treasure"])
    opening(s)
    s.say("{His} room was always a mess. There were toys and clothes everywhere.",
          "{name} did not like to clean {his} room.", "{His} room was so messy that nobody could see the floor.")
    s.say("{day}, {mom} said, \"Please clean your room, {name}.\" \"Later,\" said {name}.",
          "{day}, {mom} asked {him} to clean up. \"I have no time,\" said {name}.")
    s.say("That afternoon, {his} friend {friend} came and wanted to play with the {thing}.",
          "Then {friend} called from outside, \"Bring your {thing} and come and play!\"")
    s.say("{name} looked for the {noun}, but {he} could not find it in the mess.",
          "\"Where is it?\" {he} said. {He} looked here and there, but the {noun} was nowhere to be seen.")
    s.say("{He} stepped on a toy and fell down. \"Ouch!\" {he} cried.",
          "{He} pulled a box from the shelf, and everything fell on the floor.",
          "A pile of clothes fell on {his} head.")
    s.say("\"Now I see what {elder} meant,\" said {name}.", "{name} sighed. \"I should have cleaned up,\" {he} said.")
    s.say("{friend} came in and laughed. \"I will help you,\" {fhe} said.",
          "\"If we do it together, it will be fast,\" said {friend}.")
    s.say("They put the books on the shelf and the clothes in the closet.",
          "{name} picked up the toys, and {friend} folded the clothes.",
          "They made a game of it and sang a cleaning song.")
    s.say("Under the bed, they found {treasure}.",
          "Behind the desk, {name} found {treasure}. \"I forgot about this!\" {he} said.")
    s.say("And at the very bottom of the last pile was the {thing}!",
          "Then {friend} lifted the last blanket, and there was the {thing}!")
    s.say("{Mom} looked in and could not believe {mhis} eyes. \"How nice it looks!\" {mhe} said.",
          "\"What a clean room!\" said {mom}. \"I am proud of you.\"")
    s.say("Then {name} and {friend} went outside and played until dinner.",
          "After that, the two friends played with the {noun} all afternoon.")
    ending(s, "From that day on, {name} put {his} things away every evening.",
           "{name} learned that it is easy to find things in a clean room.",
           "{name} liked {his} clean room so much that {he} kept it that way.")


def night_wish(s):
    cast(s, animal_share=0.4)
    s.facts["wish"], s.facts["come"] = s.pick([
        ("have a friend to play with",
         "There, at the door, stood {a:friend_kind} named {friend}. \"I am new here,\" said {friend}. \"Do you want to play?\""),
        ("see snow", "Everything outside was white. Big, soft snowflakes were falling from the sky"),
        ("see a real rainbow", "After a short rain, a rainbow stood over the hills, and it had every color"),
        ("hear a beautiful song", "In the tree sat a small bird, and it sang the sweetest song"),
        ("find a treasure", "In the grass lay a round, smooth stone that shone like the moon")])
    s.friendly = "friend" in s.facts["wish"]
    opening(s)
    s.say("One night, {he} looked at the sky and saw a bright star.",
          "One clear night, {name} sat by the window and looked at the stars.",
          "One evening, {name} saw a star fall from the sky.")
    s.say("\"Dear star,\" {he} whispered, \"I wish I could {wish}.\"",
          "{He} closed {his} eyes and made a wish. \"I want to {wish},\" {he} said.")
    s.say("The star twinkled as if it had heard {him}.", "The star seemed to smile, and {name} fell asleep.",
          "Then {he} went to bed and dreamed of the star.")
    s.say("The next morning, {he} looked around, but nothing had changed.",
          "In the morning, {name} ran outside, but everything was the same.")
    s.say("\"Maybe the star forgot me,\" {he} said sadly.", "{name} was sad. \"Wishes do not come true,\" {he} said.")
    s.say("\"Some wishes need a little time,\" said {mom}. \"And while you wait, you can be kind.\"",
          "{Mom} stroked {his} head and said, \"Be patient, and do something nice for someone.\"")
    s.facts["kindness"] = s.pick(["helped a snail across the path", "gave some crumbs to the birds",
                                  "brought flowers to an old neighbor", "watered the thirsty flowers",
                                  "carried a heavy basket for {his} grandma"])
    s.facts["kindness"] = s.expand(s.facts["kindness"])
    s.say("So {name} {kindness}.", "{name} thought about that, and then {he} {kindness}.",
          "That day, {name} {kindness}, and it made {him} feel good.")
    s.say("A few days later, something happened.", "The next day, {name} had a surprise.",
          "And then, one morning, {he} could not believe {his} eyes.")
    s.say("{come}." if not s.friendly else "{come}")
    s.say("\"My wish came true!\" cried {name}.", "{name} laughed and danced. \"Thank you, star!\" {he} called.")
    if s.friendly:
        s.say("{name} and {friend} played all day, and they became best friends.",
              "\"Yes!\" said {name}, and the two of them played until the evening.")
    else:
        s.say("{He} called {mom}, and they looked at it together.", "{He} ran to tell {mom}, who smiled.")
    s.say("That night, {he} looked up at the sky and waved to the star.",
          "In the evening, the star was shining again, and {name} said good night to it.")
    ending(s, "{name} learned that good things come to those who are kind.",
           "{name} never forgot the bright little star.", "And from then on, {name} was kind to everyone, every day.")


PLOTS = [lost_thing, sharing, learning, fear, lost_animal, building, broken_thing, stuck_in_tree, garden, gift,
         new_friend,
         strange_noise, picnic_rain, found_thing, helping, race, journey, messy_room, night_wish]


def story(seed, index, direct_share=0.0):
    """The story number `index` of the stream `seed`: one paragraph, the same on every machine."""
    rng = random.Random(f"{seed}/{index}")
    plot = rng.choice(PLOTS)
    s = Story(rng)
    s.direct_share = direct_share
    s.facts.update({"food": rng.choice(FOODS), "treat": rng.choice(TREATS), "day_before": "Last week,",
                    "mom_word": rng.choice(["mom", "dad", "grandma", "grandpa"])})
    s.facts.update({"the_new": "{friend}", "his_f": "{fhis}"})
    plot(s)
    return s.text()


def stories(seed, count, first=0, direct_share=0.0):
    return [story(seed, index, direct_share) for index in range(first, first + count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default="sample")
    parser.add_argument("--count", type=int, default=5)
    arguments = parser.parse_args()
    for text in stories(arguments.seed, arguments.count):
        print(text + "\n")


if __name__ == "__main__":
    main()
