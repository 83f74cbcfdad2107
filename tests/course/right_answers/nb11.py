"""Right answers to the exercises of notebook 11."""

import json

import torch


def masks_by_padding_lists(turns, pad_token_id):
    ids = [[token for _, tokens in episode for token in tokens] for episode in turns]
    hands = [[1 + (who == "policy") for who, tokens in episode for _ in tokens] for episode in turns]
    longest = max(len(row) for row in ids)
    ids = torch.tensor([row + [pad_token_id] * (longest - len(row)) for row in ids])
    hands = torch.tensor([row + [0] * (longest - len(row)) for row in hands])
    return ids, hands > 0, hands > 1


def reply_by_copying(ids, mask, reply, tokenizer):
    ids, mask = ids[:], mask[:]
    for token in tokenizer.encode(reply, add_special_tokens=False):
        ids.append(token)
        mask.append(False)
    return ids, mask


def calls_by_splitting(text):
    calls = []
    for part in text.split("<tool_call>")[1:]:
        content, closed, _ = part.partition("</tool_call>")
        if not closed:
            continue
        try:
            call = json.loads(content)
        except ValueError:
            call = None
        good = isinstance(call, dict) and isinstance(call.get("name"), str)
        good = good and isinstance(call.get("arguments", {}), dict)
        calls.append({"name": call["name"], "arguments": call.get("arguments", {})} if good else {"error": content})
    return calls


def advantages_by_loops(turn_rewards, turn_mask, states=None, gamma=1.0):
    P, G, K = turn_rewards.shape
    answer = torch.zeros(P, G, K, dtype=turn_rewards.dtype)
    for p in range(P):
        there = [(i, k) for i in range(G) for k in range(K) if turn_mask[p, i, k]]
        to_go = {}
        for i in range(G):
            later = torch.zeros((), dtype=turn_rewards.dtype)
            for k in reversed(range(K)):
                later = gamma * later + (turn_rewards[p, i, k] if turn_mask[p, i, k] else 0.0)
                to_go[i, k] = later
        state = {(i, k): k if states is None else int(states[p, i, k]) for i, k in there}
        for i, k in there:
            gaps = [to_go[i, k] - to_go[turn] for turn in there if turn[0] != i and state[turn] == state[i, k]]
            answer[p, i, k] = sum(gaps) / len(gaps) if gaps else to_go[i, k]
    return answer


def playing_group_by_group(policy, optimizer, world, secrets, steps, num_generations=8):
    """Train group by group with leave-one-out advantages. Finished games go on, and their turns carry no gradient."""
    for _ in range(steps):
        gain = 0.0
        for secret in secrets:
            tokens = torch.zeros(num_generations, 2 * world.guesses, dtype=torch.long)
            over, written = torch.zeros(num_generations, dtype=torch.bool), []
            for t in range(0, 2 * world.guesses, 2):
                logp = policy(tokens)[:, t].log_softmax(-1)
                guess = torch.multinomial(logp.detach().exp(), 1)
                written.append(torch.where(over, 0.0, logp.gather(1, guess)[:, 0]))
                tokens[:, t] = guess[:, 0]
                tokens[:, t + 1] = world.answer(secret.expand(num_generations), tokens[:, t])
                over = over | (tokens[:, t + 1] == world.found)
            won = over.double()
            advantages = (num_generations * won - won.sum()) / (num_generations - 1)
            gain = gain + (advantages * sum(written)).mean() / len(secrets)
        for parameter in policy.parameters():
            parameter.grad = None
        (-gain).backward()
        optimizer.step()


RIGHT = {
    "episode_masks": (masks_by_padding_lists,),
    "append_reply": (reply_by_copying,),
    "read_tool_calls": (calls_by_splitting,),
    "turn_advantages": (advantages_by_loops,),
    "learn_by_playing": (playing_group_by_group,),
}
