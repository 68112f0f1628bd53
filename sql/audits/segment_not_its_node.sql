-- One row a segment that is not the range of its node, or that is a target though its node is not trainable
-- (context, an auxiliary call, an answer that was not delivered or has no log-probabilities).
-- Key: group_id, execution_id, path, depth_start, reason
with judged as (
    select
        s.group_id,
        s.execution_id,
        s.path,
        s.depth_start,
        s.node,
        s.call_id,
        case
            when n.node is null then 'there is no such node'
            when (s.call_id, s.depth_start, s.length, s.tree_start, s.logprob_start, s.sampled)
                is distinct from (
                    n.call_id,
                    n.depth_start,
                    n.depth_end - n.depth_start,
                    n.tree_start,
                    n.logprob_start,
                    n.sampled
                ) then 'its range is not that of the node'
            when s.target and not n.trainable then 'it is a target and the node is not trainable'
        end as reason
    from segments as s
    left join nodes as n on n.execution_id = s.execution_id and n.node = s.node
),

final as (
    select *
    from judged
    where reason is not null
)

select * from final
