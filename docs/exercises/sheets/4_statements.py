# %% [markdown]
# # Exercises 4: what textbooks say
#
# Each sentence comes from textbooks or lectures. For each, decide whether it "holds", "holds in part"
# (in one condition, and not in another), "does not hold", or is "undecided". Look for a counterexample first. The grader compares
# your answer with our verdict: if you agree, it shows the measurement; if not, it shows the command
# that tests the sentence.
#
# Models are small character-level GPTs, and D is the width of a head.

# %%
for number, statement in enumerate(statements(), 1):
    print(f"{number:2}  {statement.text}")

# %% [markdown]
# ## Your verdicts
#
# Write one of `"holds"`, `"holds in part"`, `"does not hold"` and `"undecided"` for each number. You can
# answer a few at a time.

# %% tags=["exercise"]
verdicts = {n: None for n in range(1, len(statements()) + 1)}
verdicts[1] = None
verdicts[2] = None
### BEGIN SOLUTION
verdicts = {n: statement.verdict for n, statement in enumerate(statements(), 1)}
### END SOLUTION

# %%
points(*grade_statements(verdicts))
