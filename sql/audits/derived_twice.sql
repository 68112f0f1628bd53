-- One row a derived row that its table holds more than once: each group is in each table of a set once.
-- Key: table_name, group_id, execution_id, place
with final as (
    select 'nodes' as table_name, group_id, execution_id, node as place, count(*) as times
    from nodes
    group by group_id, execution_id, node
    having count(*) > 1
    union all
    select 'admitted', group_id, execution_id, path, count(*)
    from admitted
    group by group_id, execution_id, path
    having count(*) > 1
    union all
    select 'segments', group_id, execution_id, (path << 32) | depth_start, count(*)
    from segments
    group by group_id, execution_id, path, depth_start
    having count(*) > 1
    union all
    select 'trees', group_id, execution_id, null, count(*)
    from trees
    group by group_id, execution_id
    having count(*) > 1
    union all
    select 'weights', group_id, execution_id, null, count(*)
    from weights
    group by group_id, execution_id
    having count(*) > 1
)

select * from final
