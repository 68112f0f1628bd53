-- One row two paths of an execution that share target tokens: targets of paths are disjoint.
-- Key: group_id, execution_id, path, other_path
with targets as (
    select group_id, execution_id, path, call_id, tree_start, tree_start + length as tree_end
    from segments
    where target
),

final as (
    select
        a.group_id,
        a.execution_id,
        a.path,
        b.path as other_path,
        sum(least(a.tree_end, b.tree_end) - greatest(a.tree_start, b.tree_start))::bigint as tokens
    from targets as a
    join targets as b on b.execution_id = a.execution_id and b.call_id = a.call_id
    where a.path < b.path and a.tree_start < b.tree_end and b.tree_start < a.tree_end
    group by a.group_id, a.execution_id, a.path, b.path
)

select * from final
