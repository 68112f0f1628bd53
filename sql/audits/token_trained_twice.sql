-- One row a target range that begins inside an earlier target range of its execution: these tokens would be
-- trained more than once.
-- Key: group_id, execution_id, path, depth_start
with targets as (
    select
        group_id,
        execution_id,
        path,
        depth_start,
        node,
        call_id,
        tree_start,
        length,
        max(tree_start + length) over (
            partition by execution_id
            order by tree_start, path
            rows between unbounded preceding and 1 preceding
        ) as trained_to
    from segments
    where target and length > 0
),

final as (
    select group_id, execution_id, path, depth_start, node, call_id, tree_start, length, trained_to
    from targets
    where trained_to > tree_start
)

select * from final
