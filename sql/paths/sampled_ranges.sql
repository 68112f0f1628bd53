-- One row a range of sampled tokens that one policy version sampled and no other call cuts: [output_start,
-- output_end) of a call's output. `path` is the admitted path that trains it, null where none does.
-- Key: group_id, execution_id, call_id, output_start
with trained as (
    select execution_id, node, path
    from segments
    where target
),

sampled as (
    select
        n.group_id,
        n.execution_id,
        n.call_id,
        n.trainable,
        t.path,
        n.depth_start - c.shared_len - c.n_context as output_start,
        n.depth_end - c.shared_len - c.n_context as output_end
    from nodes as n
    join calls as c on c.execution_id = n.execution_id and c.call_id = n.call_id
    left join trained as t on t.execution_id = n.execution_id and t.node = n.node
    where n.sampled
),

final as (
    select
        s.group_id,
        s.execution_id,
        s.call_id,
        greatest(s.output_start, v.output_start) as output_start,
        least(s.output_end, v.output_end) as output_end,
        v.version,
        s.trainable,
        s.path
    from sampled as s
    join version_spans as v
        on v.execution_id = s.execution_id
        and v.call_id = s.call_id
        and v.output_start < s.output_end
        and v.output_end > s.output_start
)

select * from final
