"""Little stories for the seed: sentences with choices, put together by chance that a number decides. Written for it;
the same licence as the program.

A plot is a list of sentences. In a sentence {name} is a word of this story, [a|b|c] a choice made anew each time;
whoever is met keeps name and kind to the end."""
import random
import re

HE, SHE = ("he", "him", "his", "boy"), ("she", "her", "her", "girl")
PEOPLE = [(name,) + (SHE if i % 2 else HE) for i, name in enumerate(
    "Tom Anna Ben Lily Sam Mia Max Rose Jack Nora Leo Clara Peter Emma Hugo Ida".split())]
ANIMALS = {"cat": "purred", "dog": "barked", "mouse": "squeaked", "bird": "sang", "duck": "quacked", "frog": "croaked",
           "hen": "clucked", "goat": "bleated", "pony": "neighed", "rabbit": "wiggled its ears",
           "fox": "wagged its tail",
           "hedgehog": "rolled into a ball", "squirrel": "jumped up and down", "lamb": "bleated", "owl": "hooted"}
COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "golden"]
THINGS = ["ball", "hat", "kite", "book", "key", "drum", "cup", "box", "boat", "bell", "lamp", "coat", "scarf", "basket",
          "shoe", "spoon"]
FOODS = ["bread", "soup", "cake", "apples", "cheese", "honey", "porridge", "pears", "nuts", "pancakes", "plums", "milk"]
PLACES = ["the garden", "the wood", "the river", "the hill", "the meadow", "the old mill", "the market", "the pond",
          "the barn", "the beach", "the village"]
HIDDEN = ["under a bush", "behind a stone", "in a tree", "under the bridge", "behind the door", "in a hole",
          "in the grass", "under the bed", "on the roof", "behind the fence"]
WEATHER = [("rain", "It began to rain", "wet"), ("snow", "It began to snow", "cold"),
           ("wind", "A strong wind came", "cold"),
           ("fog", "A thick fog came", "lost")]
KIN = [("mother", "She", "her"), ("father", "He", "his"), ("grandmother", "She", "her"), ("grandfather", "He", "his"),
       ("aunt", "She", "her"), ("uncle", "He", "his")]
FEELINGS = ["happy", "glad", "proud", "merry"]

PLOTS = {
    "lost": [
        "[Once there was|There was once|One day there was] a {kind} named {name} who had a {colour} {thing}.",
        "{Name} [loved|liked] the {thing} [very much|more than anything|best of all] and took it "
        "[everywhere|to {place} every day].",
        "One [morning|evening|day] the {thing} was gone.",
        "\"Where is my {thing}?\" [said|asked|cried] {name}.",
        "{He} looked [in the house|under the bed|behind the door] and [in the kitchen|in the yard|under the "
        "table], but it was not there.",
        "Then {he} went to {place} and met a {animal}.",
        "\"Have you seen a {colour} {thing}?\" asked {name}.",
        "The {animal} {sound} and [ran|went] ahead, and {name} went after it.",
        "There was the {thing}, {hidden}!",
        "\"Thank you, little {animal},\" said {name}, and gave it some {food}.",
        "[From that day on|After that] {name} and the {animal} were friends."],
    "weather": [
        "{Name} and {his} friend {friend} went to {place} to [play|look for {food}|fly a kite].",
        "The sun was [shining|warm] and the birds were singing.",
        "{weather}, and soon they were {wet}.",
        "\"[Let us go home|We must go home],\" said {friend}.",
        "\"I do not know the way,\" said {name}, and began to cry.",
        "\"Do not be afraid,\" said {friend}. \"[I can see a light|I can hear a bell|I know this tree].\"",
        "Hand in hand they [walked|went] on, and there was the house of {his} {kin}.",
        "{His} {kin} [opened the door|was waiting at the door] and gave them [hot|warm] milk and {food}.",
        "\"[You were brave|You are good friends],\" said {his} {kin}.",
        "That night they slept [well|warm and well] and dreamed of [the sun|summer|{place}]."],
    "share": [
        "A {animal} found [some|a heap of] {food} near {place}.",
        "\"[This is all mine|I will keep it all],\" said the {animal}, and hid the {food} {hidden}.",
        "A {other} came by. \"I am [so|very] hungry,\" said the {other}. \"Have you anything to eat?\"",
        "\"No,\" said the {animal}. \"I have nothing.\"",
        "The {other} went away [sadly|with its head down].",
        "[At night|In the evening] the {animal} ate and ate, but the {food} did not taste good, for it was alone.",
        "[In the morning|The next day] it went to look for the {other}.",
        "\"[I am sorry|I was not kind],\" said the {animal}. \"Come and eat with me.\"",
        "They [ate together|shared the {food}], and it was the best [meal|breakfast] of all.",
        "It is better to share than to eat alone."],
    "help": [
        "One day {name} was walking [to|near] {place} when {he} heard a [small|little] voice.",
        "\"Help! Help!\" [cried|called] the voice.",
        "It was a {animal} that [was caught in a net|could not get out of a hole|had hurt its leg].",
        "\"[Wait|Hold still],\" said {name}. \"I will help you.\"",
        "{He} [worked|tried] for a long time, and at last the {animal} was free.",
        "\"[You are kind|Thank you],\" said the {animal}. \"One day I will help you too.\"",
        "{Name} laughed, for how could a {animal} help {him}?",
        "But in the winter {name} lost {his} way in the snow, and it was [dark|getting dark].",
        "Then the {animal} came, and it {sound}, and led {him} home.",
        "\"[Now we have helped each other|So you did help me],\" said {name}, and {he} was {feeling}."],
    "make": [
        "{Name} wanted to make a {thing} for {his} {kin}.",
        "{He} took [wood and a knife|paper and paint|cloth and thread] and went to work.",
        "The first {thing} was [too small|too big|not straight], and {he} [threw it away|began again].",
        "The second {thing} [broke|fell apart] in {his} hands.",
        "\"I cannot do it,\" [said|cried] {name}.",
        "\"Try once more,\" said {friend}. \"[I will hold it for you|I will help you].\"",
        "So they [worked together|worked on] until the evening, and the third {thing} was [good|just "
        "right], and they painted it {colour}.",
        "{His} {kin} was [very|so] {feeling}.",
        "\"This is the [finest|best] {thing} I have ever seen,\" said {his} {kin}.",
        "And {name} was {feeling}, too."],
    "night": [
        "{Name} could not sleep, for there was a [strange|loud] noise in the night.",
        "[Tap, tap, tap|Knock, knock, knock|Scratch, scratch, scratch], it went.",
        "\"Who is there?\" [whispered|asked] {name}, but nobody answered.",
        "{He} took a lamp and went [down the stairs|to the window|to the door] on tiptoe.",
        "{His} heart beat fast.",
        "[Slowly|Very slowly] {he} opened [it and looked out|the door|the curtain].",
        "There sat a [small|little] {colour} {animal} that was {wet}.",
        "\"[Come in|Come inside],\" said {name}, and gave it {food} and a warm place by the fire.",
        "The {animal} {sound} and fell asleep.",
        "And {name} slept, too, until the [sun was up|morning came]."],
    "race": [
        "A {animal} and a {other} wanted to know who was faster.",
        "\"I am,\" said the {animal}. \"I am the fastest in {place}.\"",
        "\"[Let us see|We shall see],\" said the {other}. \"Let us run to {goal}.\"",
        "{Name} [counted|called]: \"One, two, three!\" and they ran.",
        "The {animal} was [soon far ahead|much faster] and lay down {hidden} to rest.",
        "It [closed its eyes|fell asleep] in the warm sun.",
        "The {other} ran and ran, and did not stop.",
        "When the {animal} woke up, the {other} was already at {goal}.",
        "\"[You are fast|You can run well],\" said {name} to the {animal}, \"but the {other} did not stop, "
        "and so it won.\""],
    "seed": [
        "{Friend} gave {name} a [small|tiny] {colour} seed.",
        "\"Put it into the ground near {place},\" said {friend}, \"and give it water every day.\"",
        "{Name} did so. The first day nothing came, and the second day nothing came.",
        "\"It is [dead|asleep],\" said {name}, but {he} gave it water all the same.",
        "[After a week|On the seventh day|One morning] there was a little green leaf.",
        "The leaf grew [into a plant|and grew], and the plant became a tree.",
        "In the [autumn|summer] the tree was full of [apples|plums|pears|nuts].",
        "{Name} and {friend} sat under it and ate, and a {animal} sat with them and {sound}.",
        "\"[All this from so small a seed|It only needed time],\" said {name}."],
    "market": [
        "{Name} went to the market with {his} {kin} to buy {food}.",
        "There were so many people that {name} [let go of|lost] the hand of {his} {kin}.",
        "{He} looked to the left and to the right, but {his} {kin} was not there.",
        "\"What is the matter, little {kind}?\" asked an old {elder} with a {colour} {thing}.",
        "\"I have lost my {kin},\" said {name}.",
        "\"Then stand on this {box},\" said the old {elder}, \"and call as loud as you can.\"",
        "{Name} stood on the {box} and called, and all the people [were quiet|turned round].",
        "\"Here I am!\" cried {his} {kin}, and {name} ran to {kinhim}.",
        "On the way home {he} carried the {food} and [never let go of|held fast] {kinhis} hand."],
    "mill": [
        "[Long ago|Many years ago] a miller lived with a {animal} in an old mill by the river.",
        "Every day he ground the grain of the village, and every [evening|night] he shared his bread with "
        "the {animal}.",
        "One [summer|year] there was no rain, and the river was dry, and the mill stood still.",
        "\"Now there will be no bread,\" said the people.",
        "{Name}, a {kind} of the village, said: \"[My {kin} has a hand mill|There is a quern in our barn]. "
        "It is small, but it is always ready.\"",
        "So they took the quern, and {name} turned the stone, and [when {he} was tired|after {him}] "
        "{friend} turned it.",
        "It was slow, but in the evening there was flour for [everybody|all].",
        "The miller baked, and the whole village ate, and the {animal} had the first piece.",
        "A small mill that turns is better than a great one that stands."],
}

ENDINGS = ["", "", "", " The end.", " And that was that."]


def story(number):
    """The text of a number, and its words."""
    chance = random.Random("story %d" % number)
    plot = chance.choice(sorted(PLOTS))
    (name, he, him, his, kind), (friend, *_) = chance.sample(PEOPLE, 2)
    animal, other = chance.sample(sorted(ANIMALS), 2)
    weather = chance.choice(WEATHER)
    kin = chance.choice(KIN)
    place, goal = chance.sample(PLACES, 2)
    words = dict(name=name, Name=name, he=he, He=he.capitalize(), him=him, his=his, His=his.capitalize(), kind=kind,
                 friend=friend, Friend=friend, animal=animal, other=other, sound=ANIMALS[animal],
                 colour=chance.choice(COLOURS),
                 thing=chance.choice(THINGS), food=chance.choice(FOODS), place=place, goal=goal,
                 hidden=chance.choice(HIDDEN), weather=weather[1], wet=weather[2], kin=kin[0],
                 kinhim="him" if kin[1] == "He" else "her", kinhis=kin[2], feeling=chance.choice(FEELINGS),
                 box=chance.choice(["box", "barrel", "bench"]), elder=chance.choice(["man", "woman"]))
    said = []
    for sentence in PLOTS[plot]:
        chosen = re.sub(r"\[([^\]]*)\]", lambda m: chance.choice(m.group(1).split("|")), sentence)
        said.append(re.sub(r"\{(\w+)\}", lambda m: words[m.group(1)], chosen))
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", " ".join(said)) + chance.choice(ENDINGS)
    return re.sub(r"(^|[.!?] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text), words


REQUESTS = ["Tell me a story.", "Tell me a story", "tell me a story", "Can you tell me a story?", "A story, please.",
            "Please tell me a story.", "I want to hear a story.", "Write a story.", "Write a short story.",
            "Another story!"]


def request(number, text, words):
    """A way to ask for this story: by itself, or for somebody who is in it."""
    chance = random.Random("request %d" % number)
    met = [words[k] for k in ("name", "animal") if words[k] in text]
    if chance.random() < 0.5:
        return chance.choice(REQUESTS)
    about = chance.choice(met)
    if about[0].islower():
        about = ("an " if about[0] in "aeio" else "a ") + about
    return chance.choice(["Tell me a story about %s.", "Write a story about %s.", "A story about %s, please."]) % about
