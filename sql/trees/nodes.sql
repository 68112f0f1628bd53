-- One row a node of an execution's prefix tree: a range of one call's own tokens, [depth_start, depth_end)
-- on its path, cut wherever another call leaves it and between context and output. `node` is
-- (call_id << 32) | depth_start; a root has no parent. The tokens lie in `trees` from `tree_start` on, the
-- log-probabilities of a sampled node from `logprob_start` on.
-- Canonical calls are needed (a parent owns token shared_len - 1); `orphan_node` shows those that are not.
-- Key: group_id, execution_id, node
with starts as (
    select execution_id, call_id, shared_len as depth
    from tree_calls
    where n_context + n_output > 0
    union
    select execution_id, call_id, shared_len + n_context
    from tree_calls
    where n_context > 0 and n_output > 0
    union
    select child.execution_id, parent.call_id, child.shared_len
    from tree_calls as child
    join tree_calls as parent
        on parent.execution_id = child.execution_id and parent.call_id = child.parent_call_id
    where child.n_context + child.n_output > 0
        and child.shared_len > parent.shared_len
        and child.shared_len < parent.shared_len + parent.n_context + parent.n_output
),

neighbours as (
    select
        execution_id,
        call_id,
        depth,
        lead(depth) over along as depth_after,
        lead(call_id) over along as call_after
    from starts
    window along as (partition by execution_id order by call_id, depth)
),

ranges as (
    select
        c.group_id,
        c.execution_id,
        c.call_id,
        (c.call_id << 32) | s.depth as node,
        s.depth as depth_start,
        case when s.call_after = s.call_id then s.depth_after else c.shared_len + c.n_context + c.n_output end
            as depth_end,
        case when s.depth = c.shared_len then c.parent_call_id else c.call_id end as parent_call_id,
        s.depth >= c.shared_len + c.n_context as sampled,
        c.trainable,
        c.role_rank,
        c.tree_base + s.depth - c.shared_len as tree_start,
        c.logprob_base + s.depth - c.shared_len - c.n_context as logprob_start
    from neighbours as s
    join tree_calls as c on c.execution_id = s.execution_id and c.call_id = s.call_id
),

final as (
    select
        r.group_id,
        r.execution_id,
        r.call_id,
        r.node,
        p.node as parent_node,
        r.depth_start,
        r.depth_end,
        r.sampled,
        r.trainable and r.sampled as trainable,
        r.role_rank,
        r.tree_start,
        case when r.sampled then r.logprob_start end as logprob_start
    from ranges as r
    left join ranges as p
        on p.execution_id = r.execution_id and p.call_id = r.parent_call_id and p.depth_end = r.depth_start
)

select * from final
