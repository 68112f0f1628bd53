-- One row a node of an execution's prefix tree: a range of one call's own tokens, [depth_start, depth_end) on
-- its path, cut wherever another call leaves it and between context and output. `node` is
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

ranges as (
    select
        c.group_id,
        s.execution_id,
        s.call_id,
        s.depth as depth_start,
        coalesce(lead(s.depth) over along, c.shared_len + c.n_context + c.n_output) as depth_end,
        lag(s.depth) over along as depth_before,
        c.parent_call_id,
        c.shared_len,
        c.n_context,
        c.role_rank,
        c.trainable,
        c.tree_base,
        c.logprob_base
    from starts as s
    join tree_calls as c on c.execution_id = s.execution_id and c.call_id = s.call_id
    window along as (partition by s.execution_id, s.call_id order by s.depth)
),

final as (
    select
        r.group_id,
        r.execution_id,
        r.call_id,
        (r.call_id << 32) | r.depth_start as node,
        case
            when r.depth_before is not null then (r.call_id << 32) | r.depth_before
            else (p.call_id << 32) | p.depth_start
        end as parent_node,
        r.depth_start,
        r.depth_end,
        r.depth_start >= r.shared_len + r.n_context as sampled,
        r.trainable and r.depth_start >= r.shared_len + r.n_context as trainable,
        r.role_rank,
        r.tree_base + r.depth_start - r.shared_len as tree_start,
        case
            when r.depth_start >= r.shared_len + r.n_context
                then r.logprob_base + r.depth_start - r.shared_len - r.n_context
        end as logprob_start
    from ranges as r
    left join ranges as p
        on p.execution_id = r.execution_id
        and p.call_id = case when r.depth_before is null then r.parent_call_id end
        and p.depth_end = r.shared_len
)

select * from final
