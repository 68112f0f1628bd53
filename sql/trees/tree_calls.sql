-- One row a call that belongs to a tree: those of the current execution of each place of a group, once it
-- ended, as many as it reported (`call_id < calls`). What came of an earlier attempt is left out.
-- `tree_base` and `logprob_base` say where the call's own tokens begin in the arrays of `trees`.
-- `trainable`: its output may be a target: it reached the harness, each token has a log-probability, the
-- policy sampled it for the task (not `auxiliary`), and the execution was not lost.
-- Key: group_id, execution_id, call_id
with final as (
    select
        c.group_id,
        c.execution_id,
        c.call_id,
        c.parent_call_id,
        c.shared_len,
        c.n_context,
        c.n_output,
        c.role_rank,
        c.delivered and c.has_logprobs and c.role_rank < 4 and e.status <> 'lost' as trainable,
        (sum(c.n_context + c.n_output) over upto - c.n_context - c.n_output)::bigint as tree_base,
        (sum(c.n_output) over upto - c.n_output)::bigint as logprob_base
    from calls as c
    join executions as e on e.execution_id = c.execution_id
    where e.is_current and c.call_id < e.calls
    window upto as (partition by c.execution_id order by c.call_id)
)

select * from final
