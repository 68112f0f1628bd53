-- One row the current execution of each place of a group: its advantage, and the weight of each of its
-- targets. The advantage is made before the execution is expanded into paths, so one that branched counts
-- once; over its targets the token weights sum to it, however many paths there are.
-- Valid: value - mean, over the sample deviation where params.advantage is 'standardised'; exactly 0 with
-- zero variance or fewer than two valid values. Not valid: null, and no targets.
-- Key: group_id, execution_id
with trained as (
    select execution_id, sum(new_targets)::bigint as n_targets, count(*) as n_paths
    from admitted
    group by execution_id
),

advantages as (
    select
        v.execution_id,
        case
            when s.valid < 2 or s.zero_variance then 0.0::double
            when p.advantage = 'standardised' then (v.value - s.mean) / s.std
            else v.value - s.mean
        end as advantage
    from valid_executions as v
    join group_statistics as s on s.group_id = v.group_id
    cross join params as p
),

final as (
    select
        e.group_id,
        e.execution_id,
        e.index,
        a.assessment,
        a.value,
        v.execution_id is not null as valid,
        v.advantage,
        coalesce(t.n_targets, 0) as n_targets,
        coalesce(t.n_paths, 0) as n_paths,
        case when t.n_targets > 0 then v.advantage / t.n_targets end as token_weight
    from executions as e
    left join assessments as a on a.execution_id = e.execution_id
    left join advantages as v on v.execution_id = e.execution_id
    left join trained as t on t.execution_id = e.execution_id
    where e.is_current
)

select * from final
