-- One row a path that is not as admitted: its segments are missing, or hold other targets than were counted
-- or none at all, or it is one too many (over params.j_max), or paths are not numbered from 1 on.
-- Key: group_id, execution_id, path, reason
with walked as (
    select group_id, execution_id, path, coalesce(sum(length) filter (target), 0)::bigint as targets
    from segments
    group by group_id, execution_id, path
),

joined as (
    select
        coalesce(a.group_id, w.group_id) as group_id,
        coalesce(a.execution_id, w.execution_id) as execution_id,
        coalesce(a.path, w.path) as path,
        a.path is not null as is_admitted,
        a.new_targets,
        w.targets
    from admitted as a
    full join walked as w on w.execution_id = a.execution_id and w.path = a.path
),

judged as (
    select
        j.group_id,
        j.execution_id,
        j.path,
        case
            when not j.is_admitted then 'it has segments and was not admitted'
            when j.targets is null then 'it was admitted and has no segments'
            when j.targets = 0 then 'it trains nothing'
            when j.targets is distinct from j.new_targets
                then 'its segments hold ' || j.targets || ' targets, ' || j.new_targets || ' were counted'
            when p.j_max > 0 and j.path > p.j_max then 'at most ' || p.j_max || ' paths are allowed'
            when j.path <> row_number() over (partition by j.execution_id order by j.path)
                then 'paths are not numbered from 1 on'
        end as reason
    from joined as j
    cross join params as p
),

final as (
    select group_id, execution_id, path, reason
    from judged
    where reason is not null
)

select * from final
