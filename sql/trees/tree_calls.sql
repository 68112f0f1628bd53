-- One row a call with tokens that belongs to a tree: those of `tree_executions`, as many as each reported
-- (`call_id < calls`). Its own tokens are the depths [depth_start, depth_end) of its path: context, from
-- `depth_output` on output. A parent that does not own the token before `depth_start` is no parent:
-- canonical calls are needed, and `orphan_node` shows those that are not.
-- A call follows the one numbered just before it where that is its parent; `head` is the call that began such
-- a chain, `stop` the depth at which the next of the chain leaves this one (null: it is the last). `runs` are
-- made of these.
-- `tree_base`, `logprob_base`: where the call's own tokens begin in the arrays of `trees`. `trained_before`:
-- the trainable tokens of its parent that it continues, `trained_base` their sum over the execution's
-- chains up to here. `trainable`: its output may be a target: it reached the harness, each token has a
-- log-probability, the policy sampled it for the task (not `auxiliary`), and the execution was not lost.
-- Key: x, call_id
with own as (
    select
        e.x,
        c.call_id,
        c.parent_call_id,
        c.shared_len as depth_start,
        c.shared_len + c.n_context as depth_output,
        c.shared_len + c.n_context + c.n_output as depth_end,
        c.n_output,
        c.role_rank,
        c.delivered and c.has_logprobs and c.role_rank < 4 and e.counts as trainable
    from calls as c
    join tree_executions as e on e.execution_id = c.execution_id
    where c.call_id < e.calls and c.n_context + c.n_output > 0
),

placed as (
    select
        o.x,
        o.call_id,
        o.depth_start,
        o.depth_output,
        o.depth_end,
        o.n_output,
        o.role_rank,
        o.trainable,
        p.call_id as parent_call_id,
        case when p.trainable then greatest(o.depth_start - p.depth_output, 0) else 0 end as trained_before,
        coalesce(p.call_id = o.call_id - 1 and (p.role_rank = 4) = (o.role_rank = 4), false) as follows
    from own as o
    left join own as p
        on p.x = o.x
        and p.call_id = o.parent_call_id
        and o.depth_start > p.depth_start
        and o.depth_start <= p.depth_end
),

final as (
    select
        x,
        call_id,
        parent_call_id,
        depth_start,
        depth_output,
        depth_end,
        role_rank,
        trainable,
        trained_before,
        max(case when not follows then call_id end) over upto as head,
        lead(case when follows then depth_start end) over upto as stop,
        (sum(depth_end - depth_start) over upto)::bigint - (depth_end - depth_start) as tree_base,
        (sum(n_output) over upto)::bigint - n_output as logprob_base,
        (sum(case when follows then trained_before else 0 end) over upto)::bigint as trained_base
    from placed
    window upto as (partition by x order by call_id rows between unbounded preceding and current row)
)

select * from final
